"""Programs never wait for each other for ever: jaxlib's batched LAPACK calls do, if two are in flight on two cores."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np

from swsgp.ops.compiled import jit, one_at_a_time

CODE = """
import os
import threading

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count()))

import numpy as np
from swsgp import Gaussian, Matern52, PerPoint, Predictor, Settings, create, train

x = np.linspace(0, 10, 400)[:, None]
for n_neighbors in (4, 12, 16, 20):
    model = create(x, Matern52(0.5), Gaussian(), PerPoint(n_neighbors), n_inducing=64, covariance_form="full")
    trained = train(model, x, np.sin(x[:, 0]), Settings(steps=150, batch_size=64))
    predictor = Predictor(trained.model)
    threads = [threading.Thread(target=lambda: [predictor.latent(x) for _ in range(15)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


def test_training_and_predictions_from_several_threads_come_to_an_end():
    """In a process of its own, since one that hangs cannot be stopped from within. It takes some ten seconds."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr


def test_waiting_changes_nothing():
    array = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jit(lambda a: one_at_a_time(a, before=jnp.exp(a)))(array), array)
