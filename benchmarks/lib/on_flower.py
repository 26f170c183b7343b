"""A federation on Flower's Grid in one process, as the tests have it (tests/helpers/flower_grid.py)."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.records.run import Round, read_run

HELPERS = Path(__file__).parents[2] / "tests" / "helpers"


def played(
    scheme: str, options: dict[str, Any], optima: Sequence[float], width: int, *, seed: int, steps: int
) -> tuple[list[float], list[Round]]:
    """Return the mean of the first array of the model after every step, and the records.

    Schemes in rounds run in a `PacedStrategy` around FedAvg, the others in a `PacedServer`; both with their default
    settings, but for the clock: time is what clients report, 1 s and a second more from each to the next, so that runs
    are repeatable.
    """
    sys.path.append(str(HELPERS))
    try:
        import flower_fleet
        from flower_grid import Tools
    finally:
        sys.path.remove(str(HELPERS))
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from fedpace._base.registry import selectors
    from fedpace.flower import PacedServer, PacedStrategy

    apps = {client: Tools.app([flower_fleet.mod(Tools)], target=optimum) for client, optimum in enumerate(optima)}
    grid = flower_fleet.fleet(Tools, len(optima), apps=apps)
    model = Tools.arrays(np.zeros(width)) if width else flower_fleet.start(Tools)
    means: list[float] = []

    def note(number: int, arrays: Any) -> None:
        if number:
            means.append(float(np.mean(arrays["w0"].numpy())))

    with _inside_a_task(), tempfile.TemporaryDirectory() as folder:
        settings = {"clock": "reported", "seed": seed, "state": folder, **options}
        if getattr(selectors[scheme], "rounds", True):
            strategy = PacedStrategy(FedAvg(), scheme, **settings)
            for number in range(1, steps + 1):
                messages = strategy.configure_train(number, model, ConfigRecord(), grid)
                stepped, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
                model = model if stepped is None else stepped
                note(number, model)
            strategy.close()
        else:
            PacedServer(scheme, **settings).start(grid, model, steps, evaluate_fn=note)
        return means, list(read_run(Path(folder)).rounds)


@contextmanager
def _inside_a_task() -> Iterator[None]:
    """Be where Flower runs a ServerApp, and let it be silent: messages take their sender from there, where it is known.

    All is as before when this is left.
    """
    log = logging.getLogger("flwr")
    level = log.level
    identity: Any = None
    with suppress(ModuleNotFoundError):
        from flwr.supercore.task_identity import TaskIdentity

        identity = TaskIdentity
    names = ("_task_id", "_run_id", "_node_id") if identity is not None else ()
    before = {name: getattr(identity, name, None) for name in names}
    log.setLevel(logging.ERROR)
    for name in names:
        setattr(identity, name, 1)
    try:
        yield
    finally:
        log.setLevel(level)
        for name, value in before.items():
            setattr(identity, name, value)
