"""How swsgp compiles its programs."""

from functools import partial

import equinox as eqx

# XLA's YNN fusions, on by default on CPUs since jaxlib 0.10.2, wait for each other on machines with few cores:
# training on two cores stops for ever within seconds. An empty list switches them off, for our programs only.
_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

jit = partial(eqx.filter_jit, compiler_options=_OPTIONS)
