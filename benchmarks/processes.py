"""Two processes against one on this machine, each process on a core of its own.

    make bench-processes

Prints a table, also in `results/bench-processes.md`. Steps are of 50,000 random rows with M = 20,000 and H = 32;
the closed form is that of 20,000 rows with M = N and H = 32: neighbours, sums and conjugate gradients. Processes that
share the cores of a machine gain nothing over one that has them all: this says what it costs them to talk.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

SIZES = (256, 1024, 4096)


def measure(address: str, n_processes: int, process: int) -> None:
    """Rows a second of steps at each batch size and seconds of a closed form, printed by the first process."""
    # In a process of its own.
    import time

    import jax.numpy as jnp

    from swsgp import Gaussian, Matern32, PerPoint, Settings, create, processes, train
    from swsgp.fit.neighbour_likelihood import Hyper
    from swsgp.fit.solved import Form, solved

    if n_processes > 1:
        processes.join(address, n_processes, process)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50_000, 8)).astype("float32")
    y = (np.sin(x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=len(x))).astype("float32")
    found = []
    for size in SIZES:
        model = create(x, Matern32(np.full(8, 2.0)), Gaussian(0.1), PerPoint(32), n_inducing=20_000, placement="subset")
        # Neighbours are searched before the steps that are timed, which end before the next search.
        times = {}
        settings = Settings(steps=511, batch_size=size, learning_rate=1e-3)
        train(model, x, y, settings, callback=lambda report, _: times.update({report.step: report.seconds}))  # noqa: B023
        first = min(step for step in times if step > 256)
        found.append(size * (511 - first) / (times[511] - times[first]))
    form, few = Form(20_000, 32, 0, 0.5), slice(20_000)
    hyper = Hyper(model.covariance, model.likelihood, jnp.zeros(1), jnp.zeros(()), jnp.zeros(()))
    for _ in range(2):
        # The first time compiles.
        start = time.perf_counter()
        solved(hyper, x[few].astype(float), y[few].astype(float), form, "float32", 0)
        seconds = time.perf_counter() - start
    if processes.is_first():
        print(*found, seconds)


def run(n_processes: int, cores: list[list[int]]) -> list[float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running = [
        subprocess.Popen(
            [sys.executable, __file__, address, str(n_processes), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda own=own: os.sched_setaffinity(0, own),
        )
        for number, own in enumerate(cores)
    ]
    said = [one.communicate()[0] for one in running]
    return [float(number) for number in said[0].split()]


def main() -> None:
    cases = {
        "one process on one core": run(1, [[0]]),
        "two processes, each on a core": run(2, [[0], [1]]),
        "one process on two cores": run(1, [[0, 1]]),
    }
    base = cases["one process on one core"]
    heads = [f"rows a second, batches of {size:,}" for size in SIZES] + ["seconds of a closed form"]
    lines = [
        "# Two processes against one",
        "",
        "`make bench-processes`, in brackets how much faster than the first.",
        "",
    ]
    lines += [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, found in cases.items():
        cells = [f"{rate:,.0f} ({rate / own:.2f})" for rate, own in zip(found[:-1], base[:-1], strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} | {found[-1]:.1f} ({base[-1] / found[-1]:.2f}) |")
    text = "\n".join(lines) + "\n"
    print(text)
    (Path(__file__).parent.parent / "results" / "bench-processes.md").write_text(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
