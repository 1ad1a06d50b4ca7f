"""Time of one training step: ours against GPyTorch's SVGP and VNNGP, in one run on one machine.

    make bench-engine

Each system takes mini-batches of 64 from the same random table, with Adam, and learns what the row says. Ours and
the peer take turns, so that a machine that slows down slows both; the figure is the best turn of each, which on a
shared machine is the one that other programs disturbed least.
Writes `results/bench-engine.md`.
"""

import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import gpytorch
import jax
import jax.numpy as jnp
import numpy as np
import torch

import swsgp
from swsgp.data.sets import load_set
from swsgp.errors import DataFolderError
from swsgp.fit.neighbours import NeighbourTable
from swsgp.fit.rows import reach
from swsgp.fit.step import begin, run_steps
from swsgp.ops import native
from swsgp.ops.nearest import Search

N, B = 10_000, 64
TURNS = 15
# In one dispatch, as in training.
STEPS = 4096
RESULTS = Path(__file__).parent.parent / "results" / "bench-engine.md"


@dataclass(frozen=True)
class Case:
    """One row of the table. `at_least` is the speed-up asked for, `at_most` the milliseconds."""

    n_inducing: int
    n_neighbors: int
    n_columns: int
    form: str
    learn_inducing: bool
    peer: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def name(self) -> str:
        z = "learned Z" if self.learn_inducing else "fixed Z"
        return f"M={self.n_inducing}, H={self.n_neighbors}, D={self.n_columns}, {self.form} S, {z}"


CASES = [
    Case(256, 4, 14, "full", True, "SVGP", at_least=30),
    Case(1024, 4, 784, "full", True, "SVGP", at_least=40),
    Case(5000, 16, 9, "diag", False, "VNNGP", at_most=0.15),
    Case(100_000, 100, 8, "diag", False, "VNNGP", at_most=3.0),
]
# Sizes of M between which the time of a step must not grow, with H and D.
FROM, TO, GROWTH = 10_000, 1_000_000, (16, 9)
# M and neighbours of the searches for all flights.
SEARCHES = ((100_000, 100), (1_000_000, 32))
# H of the factors and inverses that are set beside a matrix product.
FACTORS = (16, 32, 64, 100)


def table(n_columns: int, n_rows: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=n_rows).astype(np.float32)


def ours(case: Case) -> Callable[[int], None]:
    """A function that takes a number of steps."""
    inducing = table(case.n_columns, max(N, case.n_inducing))[0]
    x, y = table(case.n_columns)
    model = swsgp.create(
        inducing,
        swsgp.Matern52(np.full(case.n_columns, np.sqrt(case.n_columns))),
        swsgp.Gaussian(),
        swsgp.PerPoint(case.n_neighbors),
        n_inducing=case.n_inducing,
        covariance_form=case.form,
        placement="subset",
    )
    settings = swsgp.Settings.paper(learn_inducing=case.learn_inducing)
    state, fixed = begin(model, settings)
    neighbours = None
    if not case.learn_inducing:
        neighbours = jnp.asarray(
            NeighbourTable(x, case.n_neighbors).refresh(model.metric, np.asarray(model.inducing), np.arange(N))
        )
    rows = jnp.asarray(np.random.default_rng(1).integers(0, N, size=(STEPS, B)), jnp.int32)
    pace = (jnp.asarray(part, jnp.float32) for part in (settings.rates(0, STEPS), reach(settings, 1, STEPS)))
    data = (fixed, jnp.asarray(x), jnp.asarray(y), neighbours, rows, *pace)

    def steps(n: int) -> None:
        counts = jnp.asarray(n, jnp.int32), jnp.asarray(N, jnp.float32), jnp.asarray(1.0, jnp.float32)
        jax.block_until_ready(run_steps(state, *data, *counts))

    return steps


class _Gpytorch(gpytorch.models.ApproximateGP):
    def __init__(self, strategy: Callable[[object], object], n_columns: int):
        super().__init__(strategy(self))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=n_columns))
        self.covar_module.base_kernel.lengthscale = n_columns**0.5

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, x: torch.Tensor | None, prior: bool = False, **options: object) -> object:
        # VNNGP draws its own rows where it is called without any.
        if x is None or isinstance(self.variational_strategy, gpytorch.variational.NNVariationalStrategy):
            return self.variational_strategy(x=x, prior=False, **options)
        return super().__call__(x, prior=prior, **options)


def gpytorch_svgp(case: Case) -> Callable[[int], None]:
    """SVGP with as many inducing points, full S and learned Z."""
    x, y = map(torch.from_numpy, table(case.n_columns))
    torch.manual_seed(0)

    def strategy(model: object) -> object:
        q = gpytorch.variational.CholeskyVariationalDistribution(case.n_inducing)
        return gpytorch.variational.VariationalStrategy(
            model, x[: case.n_inducing].clone(), q, learn_inducing_locations=True
        )

    model = _Gpytorch(strategy, case.n_columns)
    return _torch_steps(model, lambda: (rows := torch.randint(0, N, (B,)), model(x[rows]), y[rows])[1:])


def gpytorch_vnngp(case: Case) -> Callable[[int], None]:
    """VNNGP with as many neighbours and, up to 10,000, inducing points, from which it takes its mini-batches.

    It looks for the neighbours of all of them one after the other, which for more takes minutes.
    """
    x, y = (torch.from_numpy(part)[: case.n_inducing] for part in table(case.n_columns))
    torch.manual_seed(0)

    def strategy(model: object) -> object:
        q = gpytorch.variational.MeanFieldVariationalDistribution(len(x))
        return gpytorch.variational.NNVariationalStrategy(
            model, x, q, k=case.n_neighbors, training_batch_size=B, jitter_val=1e-3
        )

    model = _Gpytorch(strategy, case.n_columns)

    def batch() -> tuple[object, torch.Tensor]:
        output = model(x=None)
        return output, y[model.variational_strategy.current_training_indices]

    return _torch_steps(model, batch)


def _torch_steps(model: _Gpytorch, batch: Callable[[], tuple[object, torch.Tensor]]) -> Callable[[int], None]:
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=N)
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-3)
    model.train()

    def steps(n: int) -> None:
        for _ in range(n):
            optimiser.zero_grad()
            output, target = batch()
            (-objective(output, target)).backward()
            optimiser.step()

    return steps


def milliseconds(steps: Callable[[int], None], n: int) -> float:
    start = time.perf_counter()
    steps(n)
    return 1e3 * (time.perf_counter() - start) / n


def measure(case: Case) -> tuple[float, float]:
    """Milliseconds a step, ours and the peer's: the best of turns of about half a second."""
    systems = (ours(case), {"SVGP": gpytorch_svgp, "VNNGP": gpytorch_vnngp}[case.peer](case))
    counts = []
    for steps in systems:
        steps(3)
        counts.append(max(2, min(STEPS, int(500 / milliseconds(steps, 3)))))
    times = [[milliseconds(steps, n) for steps, n in zip(systems, counts, strict=True)] for _ in range(TURNS)]
    own, peer = (min(column) for column in zip(*times, strict=True))
    return own, peer


def growth() -> str:
    """How much longer a step takes with a hundred times as many inducing points."""
    systems = [ours(Case(m, *GROWTH, "diag", False, "")) for m in (FROM, TO)]
    for steps in systems:
        steps(3)
    times = [[milliseconds(steps, STEPS) for steps in systems] for _ in range(TURNS)]
    small, large = (min(column) for column in zip(*times, strict=True))
    return (
        f"M={FROM:,} to {TO:,}, H={GROWTH[0]}, D={GROWTH[1]}, diag S, fixed Z: {small:.3f} to {large:.3f} ms, "
        f"{large / small:.2f} times (asked for: at most 1.3)."
    )


def rates() -> str:
    """Operations a second of factors and inverses inside the compiled operations, and of a matrix product."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or not native.is_built():
        return "Factors and inverses: not measured, since there is no C++ compiler."
    a = jnp.asarray(np.random.default_rng(0).normal(size=(1024, 1024)), jnp.float32)
    multiply = jax.jit(lambda a: a @ a)

    def steps(n: int) -> None:
        for _ in range(n):
            jax.block_until_ready(multiply(a))

    here, level = Path(__file__).parent, native._native.level()
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/factors"
        options = ["-O3", "-std=c++17", "-fno-math-errno", "-Wno-psabi", "-pthread", f"-DINSTRUCTIONS={level}"]
        headers = f"-I{here.parent / 'src' / 'swsgp' / 'ops' / 'cpp'}"
        subprocess.run([compiler, *options, headers, str(here / "factors.cpp"), "-o", program], check=True)
        steps(3)
        product = 2 * 1024**3 / min(milliseconds(steps, 10) for _ in range(TURNS)) / 1e6
        command = [program, str(native.n_cores()), *map(str, FACTORS)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    parts = [
        f"H={n_active}: {float(own):.0f} of {product:.0f} GFLOP/s ({float(own) / product:.0%})"
        for n_active, own in zip(FACTORS, found, strict=True)
    ]
    name = ("any machine's", "AVX2", "AVX-512")[level]
    return (
        f"The factor-and-solve part of the compiled operations ({name} instructions, {native.n_cores()} threads) "
        f"beside a product of 1024×1024 matrices, float32: {'; '.join(parts)} (asked for: at least half)."
    )


def searches() -> str:
    """Seconds to find the nearest inducing inputs of all flights, exactly, where there are flights."""
    try:
        x = load_set("airline").x.astype(np.float32)
    except DataFolderError:
        return "The search for the neighbours of flights: not measured, since SWSGP_DATA does not name a folder."
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    parts = []
    for n_inducing, n_neighbors in SEARCHES:
        start = time.perf_counter()
        Search(x[:n_inducing], np.ones(x.shape[1]))(x, n_neighbors)
        parts.append(f"M={n_inducing:,}, {n_neighbors} neighbours: {time.perf_counter() - start:.0f} s")
    return (
        f"The nearest inducing inputs of {len(x):,} flights, exact, boxes made anew: {'; '.join(parts)} (asked for: at "
        "most 240 s for the first)."
    )


def processor() -> str:
    """The name of the processor, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    )
    return names[0].split(":")[1].strip() if names else platform.machine()


def main() -> None:
    lines = [
        "# Time of one training step",
        "",
        f"Mini-batches of {B}, float32; best of {TURNS} turns in one run of `make bench-engine`. "
        f"{processor()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, JAX {jax.__version__}, PyTorch {version('torch')}, "
        f"GPyTorch {version('gpytorch')}, swsgp {swsgp.__version__}.",
        "",
        "| ours | ms | peer | ms | times faster | asked for |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for case in CASES:
        own, peer = measure(case)
        of_vnngp = f", M={min(case.n_inducing, N)}, k={case.n_neighbors}"
        peer_size = f"-{case.n_inducing}" if case.peer == "SVGP" else of_vnngp
        asked = f"at least {case.at_least:.0f} times" if case.at_least else f"at most {case.at_most} ms"
        lines.append(
            f"| {case.name} | {own:.3f} | GPyTorch {case.peer}{peer_size} | {peer:.2f} | {peer / own:.1f} | {asked} |"
        )
        print(lines[-1], flush=True)
    for measured in (growth, rates, searches):
        text = measured()
        lines += ["", text]
        print(f"\n{text}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"\nWrote {RESULTS}")


if __name__ == "__main__":
    main()
