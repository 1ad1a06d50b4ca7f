"""The command-line program `swsgp`."""

from pathlib import Path
from typing import Annotated

import typer

from swsgp import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"swsgp {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Gaussian processes for large tables: sparse within sparse, with calibrated uncertainty."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the table.")] = Path("demo-output"),
) -> None:
    """Train two small models on data that come with the dependencies, in less than a minute."""
    from rich.console import Console

    from swsgp.demo import run

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        typer.echo(f"swsgp: cannot write to {out}: {error.strerror}; choose another folder with --out.", err=True)
        raise typer.Exit(1) from None
    run(out, Console())
