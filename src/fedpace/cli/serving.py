"""`fedpace readmit`: an operator's request to a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedpace.cli.common import print_json
from fedpace.cli.options import AsJson


def readmit(
    folder: Annotated[
        Path, typer.Argument(help="State folder of a Flower or NVFlare server, running or stopped.", metavar="FOLDER")
    ],
    clients: Annotated[
        list[str] | None,
        typer.Argument(
            help="Clients, by name; none = all that are excluded.", metavar="[CLIENT]...", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask excluded clients again.

    A robust rule with a validation set excludes clients whose updates oppose
    the server's own. This takes that back, and the evidence that led to it.
    A running server acts at its next step, a stopped one when it starts; its
    log says what it did. `fedpace watch FOLDER` shows which clients are
    excluded.
    """
    from fedpace.hosting.readmission import request_readmission
    from fedpace.records.influence import Influence
    from fedpace.records.run import INFO, read_run

    wanted = list(dict.fromkeys(clients or []))
    path = request_readmission(folder, wanted)
    rounds = read_run(folder).rounds if (folder / INFO).is_file() else ()
    excluded = list(Influence(rounds).excluded)
    if as_json:
        print_json({"folder": str(folder), "clients": wanted or None, "excluded": excluded, "request": str(path)})
        return
    console = Console(highlight=False, markup=False)
    whom = ", ".join(wanted) or "all excluded clients"
    console.print(f"Requested from the server of {folder}: readmit {whom}.", soft_wrap=True)
    console.print("A running server acts at its next step, a stopped one when it starts; its log says what it did.")
    if rounds:
        last = f"after round {rounds[-1].number}"
        said = f"Excluded {last}: {', '.join(excluded)}." if excluded else f"Nobody was excluded {last}."
        console.print(said, soft_wrap=True)
        if others := [name for name in wanted if name not in excluded]:
            console.print(f"Not excluded then: {', '.join(others)}.", soft_wrap=True)
