"""`mixture`: a fleet of several kinds of clients, such as 90 % phones and 10 % slow sensors. Ours.

    [delays]
    name = "mixture"
    parts = [
      { share = 0.9, name = "lognormal", median = 60.0, sigma = 0.5 },
      { share = 0.1, name = "lognormal", median = 1500.0, sigma = 0.3 },
    ]

Each part names a delay model of this package and its options. A client stays in one part. Parts of the same kind use
separate random streams.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InputError
from fedpace._base.options import check_option
from fedpace._base.rng import seed_sequence, stream
from fedpace.core.types import DelayConfig, DelayModel
from fedpace.delays.base import DelaysBySamples, Positive, WorkDelays, check_clients, check_model_bytes, check_step

Part = Mapping[str, Any]


class MixtureModel:
    """The delays of several models, each for the clients in its part."""

    def __init__(self, clients: int, members: Sequence[IntArray], models: Sequence[DelayModel]) -> None:
        """Store the rows and the model of each part."""
        self._clients = clients
        self._members = members
        self._models = models
        self._mean = frozen(self._gather([model.expected() for model in models]))

    def _gather(self, parts: Sequence[FloatArray]) -> FloatArray:
        seconds = np.empty(self._clients)
        for rows, values in zip(self._members, parts, strict=True):
            seconds[rows] = values
        return seconds

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        step = check_step(step)
        return frozen(self._gather([model.draw(step) for model in self._models]))

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the part of `draw(step)` that grows with the work, as each part of the mixture says."""
        if missing := [type(model).__name__ for model in self._models if not isinstance(model, WorkDelays)]:
            raise InputError(f"the part {missing[0]} of the mixture does not say which seconds grow with the work")
        return frozen(self._gather([model.compute_seconds(step) for model in self._models]))  # type: ignore[attr-defined]

    def expected_compute(self) -> FloatArray:
        """(n,) the part of the expected seconds that grows with the work; NaN where a part does not say it."""
        known = [
            model.expected_compute() if isinstance(model, WorkDelays) else np.full(model.expected().size, np.nan)
            for model in self._models
        ]
        return frozen(self._gather(known))


@dataclass(frozen=True)
class MixtureDelays:
    """Each client follows one of several delay models."""

    name: ClassVar[str] = "mixture"

    parts: tuple[dict[str, Any], ...] = (
        {"share": 0.9, "name": "lognormal", "median": 60.0, "sigma": 0.5},
        {"share": 0.1, "name": "lognormal", "median": 1500.0, "sigma": 0.3},
    )
    """Tables with `share` (scaled to sum to 1), `name`, and the options of that model."""

    def __post_init__(self) -> None:
        """Raise InputError if an option of the mixture or of a part is invalid."""
        if isinstance(self.parts, str | Mapping) or not isinstance(self.parts, Sequence) or not self.parts:
            raise InputError(f"parts must be a list of tables, one a part, but {self.parts!r} came")
        for place, part in enumerate(self.parts):
            _config(part, place)
        object.__setattr__(self, "parts", tuple(dict(part) for part in self.parts))

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients, each in one of the parts."""
        return self._build(check_clients(clients), None, model_bytes, seed)

    def build_for(self, samples: ArrayLike, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of clients that train on this many samples per round, for parts that depend on work."""
        work = float_array(samples, "samples of the mixture")
        return self._build(check_clients(work.size), work, model_bytes, seed)

    def _build(self, clients: int, work: FloatArray | None, model_bytes: int, seed: int) -> DelayModel:
        check_model_bytes(model_bytes)
        shares = np.array([part["share"] for part in self.parts], dtype=np.float64)
        edges = np.cumsum(shares / shares.sum())[:-1]
        of = np.searchsorted(edges, stream(seed, "delay", self.name, "part").random(clients), side="right")
        members: list[IntArray] = []
        models: list[DelayModel] = []
        for place, part in enumerate(self.parts):
            rows = np.flatnonzero(of == place)
            if rows.size:
                own = int(seed_sequence(seed, "delay", self.name, place).generate_state(1, np.uint64)[0])
                members.append(rows)
                config = _config(part, place)
                if work is not None and isinstance(config, DelaysBySamples):
                    models.append(config.build_for(work[rows], model_bytes=model_bytes, seed=own))
                else:
                    models.append(config.build(rows.size, model_bytes=model_bytes, seed=own))
        return MixtureModel(clients, members, models)


def _config(part: Part, place: int) -> DelayConfig:
    """Return the delay model that a part describes; raise InputError if it is invalid."""
    where = f"part {place} of the mixture"
    if not isinstance(part, Mapping) or "share" not in part or "name" not in part:
        raise InputError(f"{where} must be a table with 'share' and 'name', but {part!r} came")
    check_option(Positive, part["share"], f"the share of {where}")
    kind = _named(part["name"], where)
    options = {key: value for key, value in part.items() if key not in ("share", "name")}
    known = [item.name for item in fields(kind)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        wrong, right = ", ".join(map(repr, unknown)), ", ".join(known)
        raise InputError(f"{where}: {part['name']} has no option {wrong}; its options are {right}")
    config: DelayConfig = kind(**options)
    return config


def _named(name: Any, where: str) -> Any:
    module = f"fedpace.delays.{name.replace('-', '_')}" if isinstance(name, str) else ""
    if module and module.rpartition(".")[2].isidentifier() and importlib.util.find_spec(module) is not None:
        for item in vars(importlib.import_module(module)).values():
            if inspect.isclass(item) and item.__module__ == module and getattr(item, "name", None) == name:
                return item
    raise InputError(f"{where}: there is no delay model {name!r} in fedpace; `fedpace list delays` shows them")
