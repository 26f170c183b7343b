"""An experiment as TOML, and as typed objects.

Every table maps onto a frozen dataclass whose fields are the allowed keys: an unknown key, a wrong type or a senseless
value is an error that names the file, the table and the key, and says what is allowed.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpace import registry
from fedpace.core.checks import did_you_mean
from fedpace.core.errors import FedpaceError, InputError, MissingExtraError
from fedpace.core.stepping import ServerStep
from fedpace.core.types import DelayConfig, Selector, configuration
from fedpace.data.federated import DataConfig
from fedpace.delays.availability import Availability
from fedpace.models.base import ModelConfig
from fedpace.registry import Catalogue
from fedpace.server import server_step
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet
from fedpace.sim.stopping import Direction, Stop
from fedpace.sim.trainer import Training

Table = Mapping[str, Any]

DEFAULT = "default.toml"
"""The embedded experiment: what `fedpace compare` runs without arguments."""


@dataclass(frozen=True)
class Scheme:
    """A selector under the name that tables and pictures call it by."""

    label: str
    selector: Selector[Any]
    server: ServerStep[Any] | None = None
    """The server step of this scheme; None = the experiment's, or what the scheme asks for."""


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the outcome of a comparison."""

    name: str
    data: DataConfig
    model: ModelConfig
    delays: DelayConfig
    schemes: tuple[Scheme, ...]
    seeds: tuple[int, ...]
    training: Training
    fleet: Fleet
    availability: Availability
    clock: Clock
    stop: Stop
    server: ServerStep[Any] | None = None
    """The server step of every scheme that has none of its own; None = what each asks for."""

    def server_of(self, scheme: Scheme) -> ServerStep[Any]:
        """Return the server step that a scheme is run with."""
        return server_step(scheme.selector, scheme.server or self.server)

    @property
    def direction(self) -> Direction:
        """Whether a better metric is up or down."""
        return "up" if self.data.metric == "accuracy" else "down"

    def as_table(self) -> dict[str, Any]:
        """Return the experiment as TOML would hold it, defaults written out: `parse_experiment` takes it back."""
        return {
            "name": self.name,
            "seeds": list(self.seeds),
            **{part: _named(getattr(self, part)) for part in _PARTS},
            **{section: _options(getattr(self, section)) for section in _SECTIONS},
            **({} if self.server is None else {SERVER: _named(self.server)}),
            "selectors": [
                {
                    **_named(scheme.selector),
                    "label": scheme.label,
                    **({} if scheme.server is None else {SERVER: _named(scheme.server)}),
                }
                for scheme in self.schemes
            ],
        }


_PARTS: dict[str, Catalogue] = {
    "data": registry.datasets,
    "model": registry.models,
    "delays": registry.delays,
}
SERVER = "server"
"""The table of the server step, of an experiment or of one of its schemes; left out where neither says anything."""
_SECTIONS: dict[str, type[Any]] = {
    "training": Training,
    "fleet": Fleet,
    "availability": Availability,
    "clock": Clock,
    "stop": Stop,
}


def _named(component: Any) -> dict[str, Any]:
    return {"name": component.name, **_options(component)}


def _options(component: Any) -> dict[str, Any]:
    """The options of a component, without those that are unset or infinite: neither JSON nor a reader needs them."""
    options = configuration(getattr(component, "config", component))
    return {key: value for key, value in options.items() if value is not None and value != math.inf}


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in an experiment before it is built."""

    selectors: Sequence[str] | None = None
    """Labels or names to keep; a registered scheme that the experiment lacks is added with its defaults."""
    delays: str | None = None
    seeds: Sequence[int] | None = None
    target: float | None = None
    max_rounds: int | None = None
    charge_warmup: bool = False
    warmup_wait: float | None = None
    evaluate_every: int | None = None
    hold: int | None = None
    server: Table | None = None

    def apply(self, table: Table) -> dict[str, Any]:
        """Return a changed copy of `table`."""
        changed = dict(table)
        if self.seeds is not None:
            changed["seeds"] = list(self.seeds)
        limits = {
            "target": self.target,
            "max_rounds": self.max_rounds,
            "evaluate_every": self.evaluate_every,
            "hold": self.hold,
        }
        stop = changed.get("stop", {})
        if isinstance(stop, dict):
            changed["stop"] = {**stop, **{key: value for key, value in limits.items() if value is not None}}
        clock = changed.get("clock", {})
        if self.charge_warmup and isinstance(clock, dict):
            changed["clock"] = {**clock, "charge_warmup": True}
        fleet = changed.get("fleet", {})
        if self.warmup_wait is not None and isinstance(fleet, dict):
            changed["fleet"] = {**fleet, "warmup_wait": self.warmup_wait}
        if self.server is not None:
            changed[SERVER] = dict(self.server)
        delays = changed.get("delays", {})
        if self.delays is not None and not (isinstance(delays, dict) and delays.get("name") == self.delays):
            changed["delays"] = {"name": self.delays}
        if self.selectors is not None:
            entries = changed.get("selectors", [])
            present = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
            kept: list[dict[str, Any]] = []
            for wanted in self.selectors:
                # A label is one scheme; a name may be several, of which one without a label is called by it.
                labelled = [entry for entry in present if wanted == entry.get("label", entry.get("name"))]
                named = labelled or [entry for entry in present if wanted == entry.get("name")]
                kept += [entry for entry in named or [{"name": wanted}] if entry not in kept]
            changed["selectors"] = kept
        return changed


def load_experiment(path: Path | None, overrides: Overrides | None = None) -> Experiment:
    """Read an experiment; None = the embedded default."""
    source = f"the embedded {DEFAULT}" if path is None else str(path)
    try:
        text = files("fedpace").joinpath(DEFAULT).read_text() if path is None else path.read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        raise InputError(f"expected an experiment in {path}, but there is no such file") from cause
    except IsADirectoryError as cause:
        raise InputError(
            f"expected an experiment in TOML, but {path} is a folder: `fedpace report` shows the runs in one"
        ) from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise InputError(f"{path} cannot be read: {cause}") from cause
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise InputError(f"{source} is not TOML: {cause}") from cause
    return parse_experiment((overrides or Overrides()).apply(table), source)


def parse_experiment(table: Table, source: str) -> Experiment:
    """Build an experiment from a parsed TOML table."""
    _known_keys(table, ("name", "seeds", "selectors", *_PARTS, *_SECTIONS, SERVER), source)
    for part in ("name", "selectors", *_PARTS):
        if part not in table:
            raise InputError(f"{source} lacks {part!r}: an experiment names its {', '.join(['selectors', *_PARTS])}")
    parts = {part: _component(catalogue, table[part], f"{source}, [{part}]") for part, catalogue in _PARTS.items()}
    sections = {
        section: build(cls, _as_table(table.get(section, {}), f"{source}, [{section}]"), f"{source}, [{section}]")
        for section, cls in _SECTIONS.items()
    }
    target = sections["stop"].target
    if parts["data"].metric == "accuracy" and target is not None and not 0 < target <= 1:
        raise InputError(f"{source}, [stop]: an accuracy to reach lies in (0, 1], but {target} came (92 % is 0.92)")
    return Experiment(
        name=_folder_name(_typed(str, table["name"], f"{source}: name"), f"{source}: the name"),
        schemes=_schemes(table["selectors"], source),
        seeds=_seeds(table.get("seeds", 1), source),
        server=_server(table, f"{source}, [{SERVER}]"),
        **parts,
        **sections,
    )


def build(cls: type[Any], options: Table, where: str) -> Any:
    """Return `cls(**options)` with every key and type checked against the dataclass."""
    names = [item.name for item in dataclasses.fields(cls)]
    _known_keys(options, names, where)
    hints = typing.get_type_hints(cls)
    typed = {name: _typed(hints[name], value, f"{where}: {name}") for name, value in options.items()}
    try:
        return cls(**typed)
    except FedpaceError as cause:
        raise InputError(f"{where}: {cause}") from cause


def _component(catalogue: Catalogue, table: Any, where: str) -> Any:
    options = dict(_as_table(table, where))
    if "name" not in options:
        raise InputError(f"{where} lacks its name; known: {', '.join(catalogue.names())}")
    try:
        cls = catalogue[_typed(str, options.pop("name"), f"{where}: name")]
    except FedpaceError as cause:
        raise InputError(f"{where}: {cause}") from cause
    return build(cls, options, where)


def _server(table: Table, where: str) -> Any:
    """Return the server step that a table names, as a table of its own or by its name alone; None where it does not."""
    given = table.get(SERVER)
    if given is None:
        return None
    return _component(registry.servers, {"name": given} if isinstance(given, str) else given, where)


def _schemes(entries: Any, source: str) -> tuple[Scheme, ...]:
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{source}: selectors must be a list of tables, [[selectors]], with at least one entry")
    schemes: list[Scheme] = []
    for position, entry in enumerate(entries, start=1):
        where = f"{source}, [[selectors]] number {position}"
        options = dict(_as_table(entry, where))
        label = options.pop("label", None)
        server = _server(options, f"{where}: {SERVER}")
        options.pop(SERVER, None)
        selector = _component(registry.selectors, options, where)
        named = selector.name if label is None else _typed(str, label, f"{where}: label")
        schemes.append(Scheme(named, selector, server))
    labels = [scheme.label for scheme in schemes]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"{source}: two selectors are called {label!r}; give each a label of its own")
        _folder_name(label, f"{source}: the label")
    return tuple(schemes)


def _folder_name(name: str, what: str) -> str:
    """Refuse a name that cannot be a folder's, or would lead out of the one it is made in."""
    if not name.strip() or name in (".", "..") or not name.isprintable() or set(name) & set("/\\") or len(name) > 100:
        raise InputError(f"{what} {name!r} cannot name a folder: use up to 100 letters, digits, blanks and dashes")
    return name


def _seeds(value: Any, source: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InputError(f"{source}: seeds must be at least 1, but {value} came")
        return tuple(range(value))
    seeds = _typed(tuple[int, ...], value, f"{source}: seeds (a number of seeds, or a list of them)")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(f"{source}: seeds must be different integers of at least 0, but {list(seeds)} came")
    return typing.cast("tuple[int, ...]", seeds)


def _as_table(value: Any, where: str) -> Table:
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a table of keys, but {value!r} came")
    return value


def _known_keys(table: Table, known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"{where} has no key {key!r}.{did_you_mean(key, known)} Known keys: {allowed}")


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Check a TOML value against a type: strictly, since TOML has types of its own."""
    try:
        from pydantic import TypeAdapter, ValidationError
    except ModuleNotFoundError as cause:
        raise MissingExtraError("reading an experiment", "sim", "pydantic") from cause
    try:
        return TypeAdapter(hint).validate_python(_tuples(value), strict=True)
    except ValidationError as cause:
        problem = "; ".join(dict.fromkeys(error["msg"].lower() for error in cause.errors()))
        raise InputError(f"{where} is {value!r}, but {problem}") from cause


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
