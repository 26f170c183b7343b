"""The command line. Everything that it does can also be done from Python.

Commands import heavy modules only when they need them, so that `fedpace --help` is fast.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fedpace
from fedpace._base.checks import printable
from fedpace._base.errors import FedpaceError, terminable
from fedpace.cli import aggregating, listing, looking, plan, runs, tune

app = typer.Typer(
    help="Client selection for federated learning: which clients to wait for, and how to weight their updates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests one already
)
app.command()(runs.compare)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.report)
app.command()(looking.runs)
app.command()(looking.watch)
app.command()(looking.explain)
app.command()(looking.export)
app.command()(looking.readmit)
app.command()(plan.plan)
app.command()(tune.tune)
app.command()(plan.population)
app.command()(tune.reproduce)
app.command()(aggregating.aggregator)
app.command("list")(listing.list_components)
app.command()(listing.show)
app.add_typer(listing.data_app, name="data")
app.add_typer(listing.delays_app, name="delays")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(fedpace.__version__)
        raise typer.Exit


def run_command() -> None:
    """Run the application; an error of ours is one line on standard error and exit code 2."""
    try:
        with terminable():
            app()
    except FedpaceError as error:
        sys.stderr.write(f"error: {printable(str(error))}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the rounds recorded so far are kept; `fedpace report DIR` shows them\n")
        sys.exit(130)
