"""Options that several commands have: their types and what their help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpace.sim.engines.names import EngineName

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and no progress.")]
ExperimentFile = Annotated[
    Path | None,
    typer.Argument(help="Experiment in TOML. Without it: real digits, inside the package.", show_default=False),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write into (default: runs/NAME-TIME).", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs that the folder holds.")]
DelayName = Annotated[
    str | None, typer.Option("--delays", help='Another delay model: nycmesh, "lognormal(median=30)".')
]
Target = Annotated[float | None, typer.Option(help="Stop when this accuracy (or loss) is held.")]
Hold = Annotated[
    int | None,
    typer.Option(
        help="Instants over which the mean must meet the target (default 10); 1 = the first crossing counts.",
        show_default=False,
    ),
]
ChargeWarmup = Annotated[bool, typer.Option("--charge-warmup", help="Let the measuring rounds count on the clock.")]
WarmupWait = Annotated[
    float | None,
    typer.Option(
        help="Share of the clients that a charged warm-up waits for; others are known when they answer (default 1).",
        show_default=False,
    ),
]
ServerStep = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Server step of all schemes, as NAME or NAME:KEY=VALUE,... (default: what each scheme asks for).",
        show_default=False,
    ),
]
MaxRounds = Annotated[int | None, typer.Option(help="Stop after this many rounds.")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Evaluate the shared model only every so many rounds.")]
CheckpointEvery = Annotated[
    float | None,
    typer.Option(
        help="Seconds between checkpoints; 0 = after every round, inf = none (default: as often as costs little).",
        show_default=False,
    ),
]
KeepModel = Annotated[
    bool | None,
    typer.Option(
        "--keep-model/--drop-model", help="Keep final models (default: those of up to 16 MiB).", show_default=False
    ),
]
Jobs = Annotated[int, typer.Option(help="Runs at a time; 0 = one per core where one run cannot use all cores.")]
EngineNamed = Annotated[
    EngineName, typer.Option("--engine", help="Where clients are trained; it changes the speed, never the outcome.")
]
Workers = Annotated[int, typer.Option(help="Processes that train clients at a time; 0 = one per core.")]
RayAddress = Annotated[
    str | None,
    typer.Option(help="Ray cluster to use with --engine ray; `auto` finds the one around.", show_default=False),
]
