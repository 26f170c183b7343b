"""Command-line options that several commands share, with their types and help texts."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedpace.sim.engines import EngineName

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and no progress.")]
ExperimentFile = Annotated[
    Path | None,
    typer.Argument(
        help="Experiment in TOML, with data, model and training. Default: handwritten digits, part of the package.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write into (default: runs/NAME-TIME).", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs that the folder holds.")]
Jobs = Annotated[
    int,
    typer.Option(
        help="Runs at a time; 0 = one per core if each run trains in one process, else 1. With several "
        "runs at a time, --workers is ignored."
    ),
]


def described(text: str, *names: str) -> Any:
    """Return an option whose help text states its default."""
    return typer.Option(*names, help=text, show_default=False)


@dataclass(frozen=True)
class Changes:
    """Options that change an experiment, with the names of `fedpace.config.Overrides`."""

    server: Annotated[
        str | None,
        described("Server step of all schemes, as NAME or NAME:KEY=VALUE,... (default: what each scheme asks for)."),
    ] = None
    robust: Annotated[
        str | None,
        described("Robust rule in place of the weighted mean, as NAME or NAME,KEY=VALUE,... (default: the mean)."),
    ] = None
    validation: Annotated[
        int | None,
        described(
            "Number of samples that the server holds; fltrust and zeno compare updates with an update that the server "
            "trains on these samples."
        ),
    ] = None
    target: Annotated[float | None, typer.Option(help="Stop when this accuracy (or loss) is held.")] = None
    hold: Annotated[
        int | None,
        described(
            "Judge the target by the mean over this many instants, a median delay apart (default 10); 1 = the first "
            "crossing counts."
        ),
    ] = None
    max_rounds: Annotated[
        int | None,
        typer.Option(
            "--max-rounds",
            "--rounds",
            help="Limit on rounds or server steps. A target met by the limit may still be confirmed after it.",
        ),
    ] = None
    evaluate_every: Annotated[int | None, typer.Option(help="Evaluate the shared model only every so many rounds.")] = (
        None
    )
    charge_warmup: Annotated[
        bool | None,
        described(
            "Whether the warm-up, which measures clients, takes virtual time (default), or none, as in the paper.",
            "--charge-warmup/--free-warmup",
        ),
    ] = None
    warmup_wait: Annotated[
        float | None,
        described("Share of the clients that a charged warm-up waits for; others join when they reply (default 0.25)."),
    ] = None
    arithmetic: Annotated[
        str | None,
        described(
            "Library that trains clients: torch, or numpy for linear, softmax and mlp. Results differ in the last "
            "digits."
        ),
    ] = None
    device: Annotated[
        str | None,
        described("Where torch trains: cpu (default), cuda, cuda:1, mps, or auto, which takes a GPU if there is one."),
    ] = None
    precision: Annotated[
        str | None,
        described("Precision of training on a GPU: float32 (default), bfloat16 or float16."),
    ] = None
    secure: Annotated[
        bool | None,
        described(
            "`--secure`: the server sees only group sums. `--open` (default): it sees every update.", "--secure/--open"
        ),
    ] = None
    minimum: Annotated[int | None, described("Fewest clients in a sum, with --secure (default 8).")] = None
    dp: Annotated[
        str | None,
        described("Differential privacy of each client, with sums: KEY=VALUE,... such as epsilon=3,clip=1."),
    ] = None
    track: Annotated[
        list[str] | None,
        described("Show the runs in a tracker while they go on: mlflow, wandb, tensorboard or otel. Repeatable."),
    ] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """Options that say how runs are executed; they do not change the results."""

    engine: Annotated[
        EngineName,
        typer.Option(
            help="Where clients are trained: auto, inline, processes or ray. It changes the speed, not the results.",
            metavar="NAME",  # the choices would take the width of every line of the help
        ),
    ] = "auto"
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that train clients within a run, if runs go one at a time (--jobs); 0 = one per core."
        ),
    ] = 0
    ray_address: Annotated[
        str | None, described("Ray cluster to use with --engine ray; `auto` finds one that runs.")
    ] = None
    checkpoint_every: Annotated[
        float | None,
        described(
            "Seconds between checkpoints; 0 = after every round, inf = none (default: they take 2 % of the time)."
        ),
    ] = None
    keep_model: Annotated[
        bool | None,
        described("Keep final models (default: those of up to 16 MiB).", "--keep-model/--drop-model"),
    ] = None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which each parameter that is a group of options becomes one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    taken: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        options = inspect.signature(groups[name]).parameters.values() if name in groups else [parameter]
        types = get_type_hints(groups[name], include_extras=True) if name in groups else hints
        taken += [option.replace(kind=parameter.kind, annotation=types[option.name]) for option in options]
    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    return expanded


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    from fedpace.records.run import plain

    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
