"""`Experiment`, the configuration of a comparison, and the functions that load it from TOML.

Every table of the file becomes a frozen dataclass, and its fields are the allowed keys. An unknown key, a wrong type or
an invalid value raises an error that names the file, the table and the key, and says what is allowed.
"""

from __future__ import annotations

import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpace._base import registry
from fedpace._base.checks import at_least, between, check_options, did_you_mean, whole
from fedpace._base.errors import FedpaceError, InputError, MissingExtraError
from fedpace._base.registry import Catalogue, parse_named, scheme_table
from fedpace.core.aggregation import check_robust
from fedpace.core.privacy import TrainingPrivacy
from fedpace.core.server_rule import ServerRule
from fedpace.core.types import DelayConfig, Selector, configuration
from fedpace.data.arrays import OWN
from fedpace.data.federated import DataConfig
from fedpace.delays.availability import Availability
from fedpace.models.contract import ModelConfig
from fedpace.server import server_step
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet
from fedpace.sim.stopping import Direction, Stop
from fedpace.sim.training import Training
from fedpace.tracking import Tracker, make_trackers
from fedpace.trust.robust import RobustRule

TomlTable = Mapping[str, Any]

WORDS = {
    "input should": "it should",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text in quotes",
    "a valid boolean": "true or false",
    "a valid tuple": 'a list, such as ["one", "two"] or [1, 2]',
    "a valid dictionary": "a table, such as { name = ... }",
}
"""Phrases in pydantic's messages, and what users of TOML read instead."""


def build(cls: type[Any], options: TomlTable, where: str) -> Any:
    """Return `cls(**options)` after checking every key and type against the dataclass."""
    check_options(cls, options, where, "key")
    hints = typing.get_type_hints(cls)
    checked = {name: typed(hints[name], value, f"{where}: {name}") for name, value in options.items()}
    try:
        return cls(**checked)
    except FedpaceError as cause:
        raise InputError(f"{where}: {cause}") from cause


def as_table(value: Any, where: str) -> TomlTable:
    """Return `value`; raise if it is not a table."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a table of keys, but {value!r} came")
    return value


def known_keys(table: TomlTable, known: Sequence[str], where: str) -> None:
    """Raise if the table has a key that is not in `known`."""
    for key in table:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"{where} has no key {key!r}.{did_you_mean(key, known)} Known keys: {allowed}")


def typed(hint: Any, value: Any, where: str) -> Any:
    """Return a TOML value checked against a type hint; strict, because TOML values have types."""
    try:
        from pydantic import TypeAdapter, ValidationError
    except ModuleNotFoundError as cause:
        raise MissingExtraError("reading an experiment", "sim", "pydantic") from cause
    try:
        return TypeAdapter(hint).validate_python(_tuples(value), strict=True)
    except ValidationError as cause:
        problem = "; ".join(dict.fromkeys(_said(error["msg"]) for error in cause.errors()))
        raise InputError(f"{where} is {value!r}, but {problem}") from cause


def _said(message: str) -> str:
    """Return a pydantic message in words for users of TOML."""
    said = message[:1].lower() + message[1:]
    for theirs, ours in WORDS.items():
        said = said.replace(theirs, ours)
    return said


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


FILES = (".json", ".jsonl", ".html", ".png", ".npz", ".safetensors")
"""Endings of files that are written beside the schemes' folders; a scheme's label must not have one."""
PATHS = (("data", "path"), ("delays", "file"))
"""Tables and keys that name a file or folder."""
DATA_FILES = (".csv", ".tsv", ".parquet", ".pq", ".npz", ".arrow")
"""Endings of files that hold data, not an experiment."""
DEFAULT = "default.toml"
"""The embedded experiment, which `fedpace compare` runs without arguments."""


@dataclass(frozen=True)
class LabelledScheme:
    """A selector with its label in tables and pictures."""

    label: str
    selector: Selector[Any]
    server: ServerRule[Any] | None = None
    """The server step of this scheme; None = the experiment's, or the one that the scheme asks for."""


@dataclass(frozen=True)
class Experiment:
    """Everything that determines the results of a comparison."""

    name: str
    data: DataConfig
    model: ModelConfig
    delays: DelayConfig
    schemes: tuple[LabelledScheme, ...]
    seeds: tuple[int, ...]
    training: Training
    fleet: Fleet
    availability: Availability
    clock: Clock
    stop: Stop
    server: ServerRule[Any] | None = None
    """The server step of every scheme without its own; None = the one that each scheme asks for."""
    robust: RobustRule | None = None
    """Robust rule that combines the updates of every scheme; None = the weighted mean."""
    validation: int = 0
    """Number of samples that the server holds, for robust rules that compare updates with the server's update."""
    privacy: TrainingPrivacy = field(default_factory=TrainingPrivacy)
    """What the server sees of updates."""
    track: tuple[Tracker, ...] = ()
    """Experiment trackers that show every run while it goes on; they do not change the results."""

    def __post_init__(self) -> None:
        """Raise if a robust rule lacks its validation set, or if no rule uses the validation set."""
        whole(self.validation, 0, "validation")
        check_robust(self.robust, self.validation)

    def server_of(self, scheme: LabelledScheme) -> ServerRule[Any]:
        """Return the server step that a scheme uses."""
        return server_step(scheme.selector, scheme.server or self.server)

    @property
    def direction(self) -> Direction:
        """Whether a better metric is up or down."""
        given: Direction | None = getattr(self.data, "direction", None)  # of a user's metric
        return given or ("up" if self.data.metric == "accuracy" else "down")

    def as_table(self) -> dict[str, Any]:
        """Return the experiment as a TOML table with all defaults; `parse_experiment` reads it back."""
        return {
            "name": self.name,
            "seeds": list(self.seeds),
            **{part: _named(getattr(self, part)) for part in _PARTS},
            **{section: _options(getattr(self, section)) for section in _SECTIONS},
            **({} if self.server is None else {SERVER: _named(self.server)}),
            **({} if self.robust is None else {ROBUST: self.robust_table()}),
            **({} if self.privacy == TrainingPrivacy() else {PRIVACY: _options(self.privacy)}),
            **({TRACK: [_named(tracker) for tracker in self.track]} if self.track else {}),
            "selectors": [
                {
                    **_named(scheme.selector),
                    "label": scheme.label,
                    **({} if scheme.server is None else {SERVER: _named(scheme.server)}),
                }
                for scheme in self.schemes
            ],
        }

    def robust_table(self) -> dict[str, Any]:
        """Return the table `[robust]`: name, options and `validation`; empty without a robust rule."""
        if self.robust is None:
            return {}
        return {**_named(self.robust), **({VALIDATION: self.validation} if self.validation else {})}


_PARTS: dict[str, Catalogue] = {
    "data": registry.datasets,
    "model": registry.models,
    "delays": registry.delays,
}
SERVER = "server"
"""Key of the server step's table, in an experiment or in a scheme; optional."""
ROBUST, VALIDATION = "robust", "validation"
"""Key of the robust rule's table (optional), and the key in it that is not an option of the rule."""
PRIVACY = "privacy"
"""Key of the table that says what the server sees of updates; optional."""
TRACK = "track"
"""Key of the experiment trackers: a name, or a list of names or tables; optional."""
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
    """Return the options of a component, without those that are None or infinite."""
    while (inner := getattr(component, "config", None)) is not None:  # data that are shared, or judged by own metrics
        component = inner
    options = configuration(component)
    return {key: value for key, value in options.items() if value is not None and value != math.inf}


def load_experiment(path: Path | None, overrides: Overrides | None = None) -> Experiment:
    """Read an experiment from a TOML file; None = the embedded default."""
    return load_experiments(path, [overrides])[0]


def load_experiments(path: Path | None, overrides: Sequence[Overrides | None]) -> list[Experiment]:
    """Read a file once, and return one experiment for each of `overrides`."""
    source = f"the embedded {DEFAULT}" if path is None else str(path)
    if path is not None and path.suffix.lower() in DATA_FILES and path.is_file():
        raise InputError(
            f"{path} is a data file, and an experiment is a TOML file that names it: write one with data = {{ name = "
            f'"table", path = "{path.name}", client = "COLUMN", target = "COLUMN" }}; docs/own-tables.md has ten lines '
            f"to start from, and `fedpace data show table -o path={path} -o client=COLUMN -o target=COLUMN` reads it"
        )
    try:
        text = files("fedpace").joinpath(DEFAULT).read_text() if path is None else path.read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        hint = ""
        if str(path) in registry.selectors.names():
            hint = f"; for the scheme of that name say --selectors {path}"
        elif path is not None and (named := path.with_name(f"{path.name}.toml")).is_file():
            hint = f". Did you mean {named}?"
        raise InputError(f"expected an experiment in {path}, but there is no such file{hint}") from cause
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
    found = table if path is None else _beside(table, path.parent)
    return [parse_experiment(found, source, each) for each in overrides]


def _beside(table: TomlTable, folder: Path) -> TomlTable:
    """Resolve file names in a table: relative to the current folder or, if missing there, to `folder`."""
    found = dict(table)
    for part, key in PATHS:
        options = table.get(part)
        if not isinstance(options, dict):
            continue
        name = options.get(key)
        if isinstance(name, str) and name and not Path(name).exists() and (folder / name).exists():
            found[part] = {**options, key: str(folder / name)}
    return found


def parse_experiment(table: TomlTable, source: str, overrides: Overrides | None = None) -> Experiment:
    """Build an experiment from a parsed TOML table, changed by command-line options.

    Errors name the place of the mistake: the file, or the option.
    """
    given = overrides or Overrides()
    options = given.origins(table)
    for section in options.keys() & _SECTIONS.keys():
        _section(table, section, f"{source}, [{section}]")  # report mistakes in the file before those in options
    table = given.apply(table)
    named = (*_PARTS, *_SECTIONS, SERVER, ROBUST, PRIVACY)
    where = {part: options.get(part, f"{source}, [{part}]") for part in named}
    known_keys(table, ("name", "seeds", "selectors", *named, TRACK), source)
    for part in ("name", "selectors", *_PARTS):
        if part not in table:
            raise InputError(f"{source} lacks {part!r}: an experiment names its {', '.join(['selectors', *_PARTS])}")
    parts = {part: _component(catalogue, table[part], where[part]) for part, catalogue in _PARTS.items()}
    sections = {section: _section(table, section, where[section]) for section in _SECTIONS}
    target = sections["stop"].target
    # Ask for the metric last: for data set `table` it reads the data file, which reports may not have.
    if target is not None and not 0 < target <= 1 and parts["data"].metric == "accuracy":
        place = where["stop"] if given.target is None else "--target"
        raise InputError(f"{place}: an accuracy to reach lies in (0, 1], but {target} came (92 % is 0.92)")
    robust, validation = _robust(table, where[ROBUST])
    return Experiment(
        name=folder_name(typed(str, table["name"], f"{source}: name"), f"{source}: the name"),
        schemes=_schemes(table["selectors"], source, options),
        seeds=_seeds(table.get("seeds", 1), source),
        server=_server(table, where[SERVER]),
        robust=robust,
        validation=validation,
        privacy=build(TrainingPrivacy, as_table(table.get(PRIVACY, {}), where[PRIVACY]), where[PRIVACY]),
        track=_trackers(table, options.get(TRACK, f"{source}: {TRACK}")),
        **parts,
        **sections,
    )


def _section(table: TomlTable, section: str, where: str) -> Any:
    return build(_SECTIONS[section], as_table(table.get(section, {}), where), where)


def _component(catalogue: Catalogue, table: Any, where: str) -> Any:
    options = dict(as_table(table, where))
    if "name" not in options:
        raise InputError(f"{where} lacks its name; known: {', '.join(catalogue.names())}")
    if options["name"] == OWN:
        raise InputError(
            f"{where}: these runs have data, a model or delays that a program handed over, and only it has them: call "
            "fedpace.compare(..., out=FOLDER, resume=True) there"
        )
    try:
        cls = catalogue[typed(str, options.pop("name"), f"{where}: name")]
    except FedpaceError as cause:
        raise InputError(f"{where}: {cause}") from cause
    return build(cls, options, f"{where}, {cls.name}" if where.startswith("--") else where)


def _server(table: TomlTable, where: str) -> Any:
    """Return the server step that a table names, given as a table or as a name; None if it names none."""
    given = table.get(SERVER)
    if given is None:
        return None
    return _component(registry.servers, {"name": given} if isinstance(given, str) else given, where)


def _robust(table: TomlTable, where: str) -> tuple[RobustRule | None, int]:
    """Return the robust rule that a table names, and the size of its validation set; None and 0 without a rule."""
    given = table.get(ROBUST)
    if given is None:
        return None, 0
    options = dict(as_table({"name": given} if isinstance(given, str) else given, where))
    samples = typed(int, options.pop(VALIDATION, 0), f"{where}: {VALIDATION}")
    whole(samples, 0, f"{where}: {VALIDATION}")
    rule = _component(registry.robust, options, where) if options or not samples else None
    try:
        check_robust(rule, samples)
    except InputError as cause:
        raise InputError(f"{where}: {cause}") from cause
    return rule, samples


def _trackers(table: TomlTable, where: str) -> tuple[Tracker, ...]:
    try:
        return make_trackers(table.get(TRACK), where)
    except InputError as cause:
        raise cause if where in str(cause) else InputError(f"{where}: {cause}") from cause


def _schemes(entries: Any, source: str, origins: Mapping[str, str]) -> tuple[LabelledScheme, ...]:
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{source}: selectors must be a list of tables, [[selectors]], with at least one entry")
    schemes: list[LabelledScheme] = []
    for position, entry in enumerate(entries, start=1):
        where = origins.get(f"selectors {position}", f"{source}, [[selectors]] number {position}")
        options = dict(as_table(entry, where))
        label = options.pop("label", None)
        server = _server(options, f"{where}: {SERVER}")
        options.pop(SERVER, None)
        selector = _component(registry.selectors, options, where)
        named = selector.name if label is None else typed(str, label, f"{where}: label")
        schemes.append(LabelledScheme(named, selector, server))
    labels = [scheme.label for scheme in schemes]
    for label in labels:
        if labels.count(label) > 1:
            place = origins.get("selectors 1", source)
            raise InputError(f"{place}: two schemes are called {label!r}: name one once, or give it another label")
    for position, label in enumerate(labels, start=1):
        folder_name(label, f"{origins.get(f'selectors {position}', source)}: the label")
    return tuple(schemes)


def folder_name(name: str, what: str) -> str:
    """Return `name`; raise if it is not a valid folder name or could leave its parent folder."""
    if not isinstance(name, str):
        raise InputError(f"{what} must be text, but {name!r} came")
    if not name.strip() or name in (".", "..") or not name.isprintable() or set(name) & set("/\\") or len(name) > 100:
        raise InputError(f"{what} {name!r} cannot name a folder: use up to 100 letters, digits, blanks and dashes")
    if name.lower().endswith(FILES):
        raise InputError(f"{what} {name!r} is the name of a file beside the runs: leave the ending out")
    return name


MOST_SEEDS = 100_000
"""Most seeds that can be requested by number, so that a typo does not fill the memory."""


def _seeds(value: Any, source: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        at_least(value, 1, f"{source}: seeds")
        between(value, 1, MOST_SEEDS, f"{source}: seeds")
        return tuple(range(value))
    seeds = typed(tuple[int, ...], value, f"{source}: seeds (a number of seeds, or a list of them)")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(f"{source}: seeds must be different integers of at least 0, but {list(seeds)} came")
    return typing.cast("tuple[int, ...]", seeds)


@dataclass(frozen=True)
class Overrides:
    """Command-line options that change an experiment before it is built; None = unchanged."""

    selectors: Sequence[str] | None = None
    """Labels or names of the schemes to run. A registered scheme that is not in the experiment is added with its
    defaults, and a scheme with options, such as `random(k=5)`, is added as given."""
    delays: str | None = None
    seeds: Sequence[int] | None = None
    target: float | None = None
    max_rounds: int | None = None
    charge_warmup: bool | None = None
    warmup_wait: float | None = None
    evaluate_every: int | None = None
    hold: int | None = None
    server: TomlTable | None = None
    robust: TomlTable | None = None
    validation: int | None = None
    arithmetic: str | None = None
    device: str | None = None
    precision: str | None = None
    secure: bool | None = None
    """Whether the server sees sums only."""
    minimum: int | None = None
    """Fewest clients in a sum."""
    dp: TomlTable | None = None
    """Options of `[privacy]` for differential privacy."""
    track: Sequence[str] | None = None
    option: str = "--selectors"
    """Name of the command-line option for schemes, for error messages."""

    def apply(self, table: TomlTable) -> dict[str, Any]:
        """Return a changed copy of `table`."""
        changed = dict(table)
        if self.seeds is not None:
            changed["seeds"] = list(self.seeds)
        for section, keys in self._sections().items():
            before = changed.get(section, {})
            if isinstance(before, dict):
                changed[section] = {**before, **keys}
        if self.server is not None:
            changed["server"] = dict(self.server)
        if self.track is not None:
            changed["track"] = list(self.track)
        before = changed.get(PRIVACY, {})
        if (private := self._privacy()) and isinstance(before, dict):
            changed[PRIVACY] = {**before, **private}
            self._check_privacy(changed[PRIVACY])
        if self.robust is not None or self.validation is not None:
            changed["robust"] = self._robust(table)
        if self.delays is not None and self._other_delays(table):
            changed["delays"] = parse_named(self.delays, "--delays")
        if self.selectors is not None:
            present = _scheme_entries(table)
            chosen: list[dict[str, Any]] = []
            for text in self.selectors:
                added = scheme_table(text, self.option)
                if len(added) > 1:
                    chosen.append(added)
                    continue
                wanted = added["name"]
                # A label matches one scheme. A name may match several; a scheme without a label has its name as label.
                labelled = [entry for entry in present if wanted == entry.get("label", entry.get("name"))]
                named = labelled or [entry for entry in present if wanted == entry.get("name")]
                chosen += [entry for entry in named or [{"name": wanted}] if entry not in chosen]
            changed["selectors"] = chosen
        return changed

    def origins(self, table: TomlTable) -> dict[str, str]:
        """Return part -> command-line option for each part that `apply` changes, so that errors can name the option.

        Parts are keys of the table; schemes are `selectors 1` and so on.
        """
        options = {
            section: ", ".join(f"--{key.replace('_', '-')}" for key in keys)
            for section, keys in self._sections().items()
            if keys
        }
        if self.server is not None:
            options["server"] = "--server"
        if self.track is not None:
            options["track"] = "--track"
        private = {"--secure": self.secure, "--minimum": self.minimum, "--dp": self.dp}
        if used := [option for option, value in private.items() if value is not None]:
            options[PRIVACY] = ", ".join(used)
        given = {"--robust": self.robust, "--validation": self.validation}
        if named := [option for option, value in given.items() if value is not None]:
            options["robust"] = ", ".join(named)
        if self.delays is not None and self._other_delays(table):
            options["delays"] = "--delays"
        if self.selectors is not None:
            present = _scheme_entries(table)
            for position, entry in enumerate(self.apply(table)["selectors"], start=1):
                if entry not in present:
                    options[f"selectors {position}"] = self.option
        return options

    def _sections(self) -> dict[str, dict[str, Any]]:
        """Return the given options by the section of the table that they change."""
        stop = {name: getattr(self, name) for name in ("target", "max_rounds", "evaluate_every", "hold")}
        training = {name: getattr(self, name) for name in ("arithmetic", "device", "precision")}
        return {
            "stop": {name: value for name, value in stop.items() if value is not None},
            "clock": {} if self.charge_warmup is None else {"charge_warmup": self.charge_warmup},
            "fleet": {} if self.warmup_wait is None else {"warmup_wait": self.warmup_wait},
            "training": {name: value for name, value in training.items() if value is not None},
        }

    def _privacy(self) -> dict[str, Any]:
        """Return the changes to the table `[privacy]`."""
        changed: dict[str, Any] = {}
        if self.secure is not None:
            changed["aggregation"] = "sums" if self.secure else "individual"
        if self.minimum is not None:
            changed["minimum"] = self.minimum
        return changed if self.dp is None else {**changed, "aggregation": "sums", **self.dp}

    def _check_privacy(self, table: TomlTable) -> None:
        """Raise InputError if `--dp` would add no noise, or `--minimum` would change nothing."""
        if self.dp is not None and table.get("epsilon", 0) == 0:
            raise InputError("--dp adds no noise without an epsilon above 0: give one, such as --dp epsilon=3,clip=0.5")
        if self.minimum is not None and table.get("aggregation") != "sums":
            raise InputError(
                "--minimum is the fewest clients in a sum, but the server sees single updates: add --secure, or leave "
                "--minimum out"
            )

    def _robust(self, table: TomlTable) -> Any:
        """Return the table of the robust rule: the option's rule, or the experiment's rule with another validation."""
        rule = table.get("robust", {}) if self.robust is None else self.robust
        if self.validation is None or not isinstance(rule, str | dict):
            return rule
        return {**({"name": rule} if isinstance(rule, str) else rule), "validation": self.validation}

    def _other_delays(self, table: TomlTable) -> bool:
        """Return whether the option names another delay model than the table; the table's options then do not count."""
        delays = table.get("delays", {})
        return not (isinstance(delays, dict) and delays.get("name") == self.delays)


def _scheme_entries(table: TomlTable) -> list[dict[str, Any]]:
    entries = table.get("selectors", [])
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
