"""The command-line program `swsgp`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 called wrongly,
130 interrupted. Heavy modules are imported by the commands that need them.
"""

import json as json_format
import os
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from swsgp import __version__, printing
from swsgp.errors import DataError, SettingError, SwsgpError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `swsgp fit` has written.")]
Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="A .csv, .parquet, .arrow or .feather file, a folder of such files, or an address such as s3://bucket/folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
PartMemory = Annotated[str, typer.Option("--max-memory", help="The most memory for the rows that are read at a time.")]
Target = Annotated[str | None, typer.Option(help="The column to compare with; the one of training if not given.")]

INTERRUPTED = 130


def main() -> None:
    """Run the program: a user's mistake is one line, not a stack trace, unless `--debug` asks for it."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
    try:
        app(arguments)
    except Exception as error:
        if debug:
            raise
        _say(_one_line(error))
        code = 2 if isinstance(error, SettingError) else 1
        if "swsgp.processes" in sys.modules:
            sys.modules["swsgp.processes"].fail(code)
        sys.exit(code)


def _say(text: str) -> None:
    typer.echo(f"swsgp: {text}", err=True)


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory; use fewer rows or inducing points."
    if isinstance(error, OSError) and error.strerror and not isinstance(error, SwsgpError):
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
    text = " ".join(str(error).split())
    # Errors on purpose speak for themselves.
    return text if isinstance(error, SwsgpError | OSError) else f"{type(error).__name__}: {text} (--debug shows where)"


def _leave(code: int) -> NoReturn:
    """End at once: a compiler that was interrupted may crash while the program tidies up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _check_output(out: Path, *inputs: Path | str) -> None:
    """Find out before the work that the output cannot be written, or would be written over an input."""
    from swsgp.files import check_writable

    for path in map(Path, inputs):
        if out.exists() and path.exists() and out.samefile(path):
            raise SettingError(f"--out {out} is the same file as {path}; name another one.")
    check_writable(out)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"swsgp {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")] = False,
) -> None:
    """Gaussian processes for large tables: sparse within sparse, with calibrated uncertainty.

    A table to a model, to predictions, to a page that says how good they are:

        swsgp fit train.parquet --target price --out price.swsgp

        swsgp predict price.swsgp new.csv --out predictions.csv

        swsgp report price.swsgp test.parquet --out report.html
    """


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the table.")] = Path("demo-output"),
) -> None:
    """Train two small models on data that come with the dependencies, in less than a minute."""
    from swsgp.demo import run

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write to {out}, choose another folder with --out ({error.strerror})"
        ) from None
    run(out, printing.console())


@app.command()
def fit(
    table: Table,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="The model's file.")],
    task: Annotated[
        str,
        typer.Option(
            help="regression or classification; auto: classes if the target is text, true/false or two values."
        ),
    ] = "auto",
    include: Annotated[
        list[str] | None, typer.Option(help="An input column; all others if not given. Repeat it.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="A column to leave out. Repeat it.")] = None,
    missing: Annotated[
        str, typer.Option(help="Missing values: error, drop (the rows), or fill (with medians).")
    ] = "error",
    max_categories: Annotated[int, typer.Option(help="The most values that a text column may have.")] = 20,
    likelihood: Annotated[
        str, typer.Option(help="gaussian, student-t or poisson; for classes probit, logit or softmax.")
    ] = "auto",
    kernel: Annotated[
        str,
        typer.Option(
            help="matern (of learned roughness), matern12, matern32, matern52, rbf, rational-quadratic, linear; or a "
            "sum: matern32+linear."
        ),
    ] = "auto",
    model_kind: Annotated[
        str,
        typer.Option(
            "--model",
            help="swsgp, or a system beside it: swsgp-u, svgp, full-gp, inductive-gps, transductive-gps, dgp-rbf.",
        ),
    ] = "swsgp",
    n_inducing: Annotated[int | None, typer.Option(help="Inducing points, M.")] = None,
    n_neighbors: Annotated[int | None, typer.Option(help="Active inducing points of a row, H.")] = None,
    n_landmarks: Annotated[
        int | None, typer.Option(help="Inducing points that are active for every row, beside its own; 0 for none.")
    ] = None,
    covariance: Annotated[str, typer.Option(help="The form of S: diag or full.")] = "auto",
    active: Annotated[str, typer.Option(help="per-point (SWSGP), union (SWSGP-U) or all (SVGP).")] = "per-point",
    learn_inducing: Annotated[bool | None, typer.Option(help="Move the inducing inputs, too.")] = None,
    kl_scale: Annotated[float | None, typer.Option(help="Weight of the KL term; 1 is the paper's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a mini-batch.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's rate at the start.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Optimiser steps, at most.")] = None,
    time_budget: Annotated[float | None, typer.Option(help="Seconds of training, at most.")] = None,
    early_stopping: Annotated[
        bool | None, typer.Option(help="Hold out rows to choose the best model on the way; from 500 rows on.")
    ] = None,
    precision: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    preset: Annotated[
        str,
        typer.Option(help="default (q(u) in closed form, where it can be), or paper (stochastic gradients, as there)."),
    ] = "default",
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="Read Parquet or Arrow files in parts, with this much memory for rows at most, such as 500MB."
        ),
    ] = None,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="This is one of several processes that train together, each started by this command."
        ),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(help="Where the first process is, as 10.0.0.1:9876; under SLURM and Open MPI this is known."),
    ] = None,
    n_processes: Annotated[int | None, typer.Option("--processes", help="How many processes there are.")] = None,
    process: Annotated[int | None, typer.Option(help="Which of them this is, from 0.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes all that is random.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of an interrupted run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Train a model on a table and put it in one file. What is not given is chosen by the data.

        swsgp fit houses.csv --target price --out price.swsgp

        swsgp fit visits.parquet --target n --likelihood poisson --exclude id --out n.swsgp

        swsgp fit s3://bucket/flights --target late --max-memory 2GB --out late.swsgp

        srun swsgp fit flights --target late --distributed --out late.swsgp

    While it runs, OUT.checkpoint holds the state; Ctrl-C keeps the model so far, and --resume goes on.
    """
    from swsgp import processes
    from swsgp.data.table_files import input_names, read_table
    from swsgp.estimators.classifier import SWSGPClassifier
    from swsgp.estimators.regressor import SWSGPRegressor
    from swsgp.fit.defaults import OTHER_SYSTEMS
    from swsgp.streams import is_classification, values_of

    checkpoint = out.with_name(out.name + ".checkpoint")
    has_checkpoints = model_kind not in OTHER_SYSTEMS

    def check_files() -> None:
        _check_output(out, table)
        if checkpoint.exists() and not resume:
            raise SettingError(
                f"{checkpoint} is there from an interrupted run; go on from it with --resume, or remove it."
            )
        if has_checkpoints and resume and not checkpoint.exists():
            _say(f"there is no {checkpoint}; training starts anew.")

    without_stdout = ExitStack()
    if distributed:
        # Until there is a result.
        without_stdout.enter_context(processes.without_stdout())
        processes.join(coordinator, n_processes, process)
    elif (coordinator, n_processes, process) != (None, None, None):
        raise SettingError("--coordinator, --processes and --process go with --distributed.")
    processes.in_first(check_files)
    quiet = quiet or not processes.is_first()
    names = input_names(table, target, include or [], exclude or [])
    if max_memory is None:
        rows = read_table(table, [*names, target])
        observed, inputs = rows.select([target]), rows.drop_columns([target])
        classes = is_classification(task, observed[target])
    else:
        classes = is_classification(task, values_of(table, target))
    given = {
        "n_inducing": n_inducing,
        "n_neighbors": n_neighbors,
        "n_landmarks": n_landmarks,
        "kl_scale": kl_scale,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_steps": max_steps,
        "early_stopping": early_stopping,
        "learn_inducing": learn_inducing,
    }
    model = (SWSGPClassifier if classes else SWSGPRegressor)(
        model=model_kind,
        kernel=kernel,
        likelihood=likelihood,
        covariance=covariance,
        active=active,
        preset=preset,
        time_budget=time_budget,
        precision=precision,
        missing=missing,
        max_categories=max_categories,
        random_state=seed,
        verbose=not quiet,
        **{name: value for name, value in given.items() if value is not None},
    )
    if task == "auto" and not quiet:
        _say(f"'{target}' is taken for {'classes' if classes else 'numbers'}; --task says otherwise.")
    interrupted = False
    try:
        if max_memory is None:
            model.fit(inputs, observed, checkpoint=checkpoint if has_checkpoints else None, resume=resume)
        else:
            model.fit_file(table, target, names, max_memory, checkpoint, resume, workspace=out.absolute().parent)
    except KeyboardInterrupt:
        if not hasattr(model, "fitted_"):
            way_on = f"; {checkpoint} goes on with --resume, if it is there" if has_checkpoints else ""
            _say(f"interrupted before there was a model{way_on}.")
            processes.fail(INTERRUPTED)
            _leave(INTERRUPTED)
        interrupted = True
    processes.in_first(lambda: model.save(out))
    without_stdout.close()
    if not processes.is_first():
        processes.leave()
        _leave(INTERRUPTED if interrupted else 0)
    summary = printing.summary(model, out)
    typer.echo(json_format.dumps(summary) if json else printing.as_lines(summary))
    if interrupted:
        _say(f"interrupted at step {summary['steps']}; the model so far is in {out}, and --resume goes on.")
        processes.leave()
        _leave(INTERRUPTED)
    if has_checkpoints:
        checkpoint.unlink(missing_ok=True)


@app.command()
def predict(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(help="The file of predictions: .csv, .parquet, .arrow or .feather.")],
    coverage: Annotated[float, typer.Option(help="Probability of the interval from lower to upper.")] = 0.95,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column of the table to copy, such as an id. Repeat it.")
    ] = None,
    max_memory: PartMemory = "500MB",
    json: Json = False,
) -> None:
    """Predict every row of a table, in order: mean, std, lower, upper; or class and a probability for each label.

        swsgp predict price.swsgp new.csv --keep id --out predictions.csv

    The table is read and written in parts, so it may be larger than memory.
    """
    from swsgp.data.table_files import check_format, write_batches
    from swsgp.estimators.loading import load
    from swsgp.streams import predictions

    check_format(out)
    _check_output(out, model, table)
    if Path(table).is_dir() and Path(table).resolve() in out.resolve().parents:
        raise SettingError(f"--out {out} lies in the folder {table}, which is the table; name another place.")
    if not 0 < coverage < 1:
        raise SettingError(f"coverage must be between 0 and 1, got {coverage}.")
    parts = predictions(table, load(model), keep or [], coverage, max_memory)
    with printing.progress("predicting") as count:
        n_rows = write_batches(out, map(count, parts))
    if json:
        typer.echo(json_format.dumps({"rows": n_rows, "predictions": str(out)}))
    else:
        _say(f"wrote {n_rows:,} predictions to {out}.")


@app.command()
def evaluate(
    model: Model, table: Table, target: Target = None, max_memory: PartMemory = "500MB", json: Json = False
) -> None:
    """Score a model on a table that has the target, beside a linear model and a constant.

        swsgp evaluate price.swsgp test.parquet --json

    The table is read in parts, so it may be larger than memory.
    """
    from swsgp.estimators.loading import load
    from swsgp.streams import labelled

    loaded = load(model)
    with printing.progress("evaluating") as count:
        scores = loaded.score_parts(map(count, labelled(table, loaded, target, max_memory)))
    if json:
        typer.echo(json_format.dumps(printing.finite(scores)))
        return
    printing.print_scores(scores)


@app.command()
def inspect(model: Model, json: Json = False) -> None:
    """Say what is in a model's file: columns, settings, training, versions."""
    from swsgp.serialization import read_header

    facts = printing.facts(model, read_header(model))
    typer.echo(json_format.dumps(facts) if json else printing.as_lines(facts))


@app.command()
def report(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    target: Target = None,
    json: Json = False,
) -> None:
    """Write one page of HTML that shows how good a model is on a table that has the target.

    swsgp report price.swsgp test.parquet --out report.html
    """
    import pyarrow as pa

    from swsgp.estimators.loading import load
    from swsgp.streams import labelled

    _check_output(out, model, table)
    loaded = load(model)
    parts = list(labelled(table, loaded, target))
    if not parts:
        raise DataError(f"{table} has no rows.")
    inputs, observed = map(pa.concat_tables, zip(*parts, strict=True))
    loaded.report(inputs, observed, out, title=model.name)
    if json:
        typer.echo(json_format.dumps({"report": str(out)}))
    else:
        _say(f"wrote {out}.")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment of the paper, or all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A part of it, in minutes; this is the default.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's settings.")] = False,
    data: Annotated[Path | None, typer.Option(help="The folder with the data sets; SWSGP_DATA if not given.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for results, tables and figures.")] = Path("reproduction"),
    list_: Annotated[bool, typer.Option("--list", help="Show the experiments.")] = False,
) -> None:
    """Rerun a figure or a table of the paper, and set ours beside the paper's numbers.

        swsgp reproduce --list

        swsgp reproduce local-gps --quick --data folder

    Interrupted, it goes on with the run that it was at, from the beginning of that run.
    """
    from swsgp.experiments.catalogue import NAMES, module
    from swsgp.experiments.catalogue import reproduce as run

    if list_:
        typer.echo("\n".join(f"{one:<18} {module(one).TITLE}" for one in NAMES))
        return
    if name is None:
        raise SettingError("name an experiment, or all; --list shows them.")
    if quick and full:
        raise SettingError("give --quick or --full, not both.")
    try:
        run(name, "full" if full else "quick", data, out, printing.console())
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on with the run that it was at.")
        _leave(INTERRUPTED)
