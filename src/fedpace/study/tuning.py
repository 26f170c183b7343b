"""`tune` searches the options of a scheme for the least time to the target, with optuna.

    found = tune(experiment, "fedbuff", {"buffer": Range(2, 40)}, folder=Path("runs/tune"), trials=30)
    found.options, found.best.seconds

The first trial has the defaults, so that the result is never worse than they are on the seeds of the search. On other
seeds it may be: the best of many trials is partly luck. Compare it with the defaults on seeds that the search did not
use.

A trial is the geometric mean of the times to hold the target, over the seeds. A run that misses the target counts
`MISSED` times as long as it went on. Every trial is on disk before the next begins, and a second call continues.

A search has its own folder, named after the scheme and after everything that its times depend on: the experiment with
its target, delays and limits, the seeds, and what is searched. Another search never reuses its trials.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedpace._base import registry
from fedpace._base.errors import InputError, MissingExtraError
from fedpace._base.options import Above, AtLeast, Between, check_option, constrained, option_name
from fedpace.config import Experiment, LabelledScheme, typed
from fedpace.core.types import Selector
from fedpace.records.run import RunRecord
from fedpace.runner import Execution, run_one

MISSED = 10.0
"""A run that misses the target counts so many times as long as it went on."""
WIDE = 5.0
"""Where an option has no upper limit, the search goes from its default over this factor to its default times it."""
SEEDS = (100, 101, 102)
"""Seeds of the search; comparisons have 0, 1, ..."""
SEARCH = "search.json"
"""File that says what a search is about; a hash of it is in the name of the folder."""
_APART = ("seeds", "selectors", "track")
"""Keys of an experiment that do not count in a search."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; whole numbers if `whole`. Positive ranges are searched by factors."""

    low: float
    high: float
    whole: bool = False

    @property
    def log(self) -> bool:
        """Whether the range is searched by factors."""
        return self.low > 0 and self.high / self.low > WIDE


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]


Space = Mapping[str, Range | Choice]
"""What to search: option -> range or choice."""


@dataclass(frozen=True)
class Trial:
    """One setting that was tried."""

    number: int
    options: dict[str, Any]
    seconds: float
    """Geometric mean over the seeds, with missed targets as `MISSED` says."""
    missed: int
    """Seeds under which the target was missed."""
    defaults: bool = False
    """Whether this is the trial with the default options."""


@dataclass(frozen=True)
class Tuned:
    """The result of a search."""

    scheme: str
    options: dict[str, Any]
    """The best setting that was tried; empty = the defaults."""
    trials: tuple[Trial, ...]
    """What was tried; the first trial has the defaults, unless they cannot be run in this experiment."""
    folder: Path
    """Where the runs of this search are."""

    @property
    def best(self) -> Trial:
        """The trial with the least time."""
        return min(self.trials, key=lambda trial: trial.seconds)

    @property
    def default(self) -> Trial | None:
        """The trial with the default options; None if they cannot be run, such as k = 10 of 8 clients."""
        return next((trial for trial in self.trials if trial.defaults), None)

    @property
    def text(self) -> str:
        """The scheme with its options, as `--selectors` takes it."""
        inside = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.scheme}({inside})" if inside else self.scheme


def tune(
    experiment: Experiment,
    scheme: str,
    space: Space | None = None,
    *,
    folder: Path,
    trials: int = 20,
    seeds: Sequence[int] = SEEDS,
    execution: Execution | None = None,
    watch: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Search the options of a scheme, and return the best setting.

    Args:
        experiment: data, model, delays and target; its schemes and seeds do not count.
        scheme: name of the scheme.
        space: what to search; None = what the options' declarations allow (`default_space`).
        folder: where searches are kept, each in a folder of its own; a second call with the same question continues.
        trials: number of settings to try, the defaults included. If there are no more settings than that, each is
            tried once.
        seeds: seeds of each trial. Do not report results on them.
        execution: how runs are carried out.
        watch: called after every trial.
    """
    optuna = _optuna()
    if experiment.stop.target is None:
        raise InputError("tuning needs a target to reach: set target of [stop], or give --target")
    if trials < 1:
        raise InputError(f"trials must be at least 1, but {trials} came")
    cls = registry.selectors[scheme]
    wanted = default_space(cls) if space is None else _checked(cls, space)
    if not wanted:
        raise InputError(f"{scheme} has no options to search: give some with --search, or use it as it is")
    folder = _own_folder(folder, experiment, scheme, seeds, wanted)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "trials.log")))
    study = optuna.create_study(storage=storage, study_name=scheme, load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # a second call draws other settings
    standard = cls()
    defaults = {name: getattr(standard, name) for name in wanted}
    left = _enqueue(study, wanted, defaults, trials)

    def objective(current: Any) -> float:
        standard_options = bool(current.user_attrs.get("defaults"))
        if standard_options:
            options = dict(defaults)
            for name, each in wanted.items():
                if _inside(defaults[name], each):  # so that the sampler learns from it
                    _suggest(current, name, each)
        else:
            options = {name: _suggest(current, name, each) for name, each in wanted.items()}
        try:
            selector = cls(**options)
            records = [
                _run(experiment, scheme, selector, seed, folder / f"trial-{current.number}" / f"seed-{seed}", execution)
                for seed in seeds
            ]
        except InputError as refused:  # options that do not go together, or not with the experiment
            current.set_user_attr("refused", str(refused))
            raise optuna.TrialPruned from refused
        missed = sum(record.reached is None for record in records)
        current.set_user_attr("missed", missed)
        seconds = geometric_seconds(records)
        if watch is not None:
            watch(Trial(current.number, options, seconds, missed, standard_options))
        return seconds

    study.optimize(objective, n_trials=left)
    done = tuple(
        Trial(
            trial.number,
            dict(defaults if trial.user_attrs.get("defaults") else trial.params),
            float(trial.value),
            int(trial.user_attrs["missed"]),
            bool(trial.user_attrs.get("defaults")),
        )
        for trial in study.trials
        if trial.value is not None
    )
    if not done:
        reasons = [trial.user_attrs["refused"] for trial in study.trials if "refused" in trial.user_attrs]
        raise InputError(f"no setting of {scheme} that was tried can be run; the last one: {reasons[-1]}")
    best = min(done, key=lambda trial: trial.seconds)
    return Tuned(scheme, {} if best.defaults else best.options, done, folder)


def _own_folder(
    parent: Path, experiment: Experiment, scheme: str, seeds: Sequence[int], space: dict[str, Range | Choice]
) -> Path:
    """Return the folder of a search; it differs for every experiment, target, delay model, scheme, seeds and space."""
    about = {
        "scheme": scheme,
        "seeds": list(seeds),
        "space": {name: asdict(each) for name, each in space.items()},
        "experiment": {key: value for key, value in experiment.as_table().items() if key not in _APART},
    }
    text = json.dumps(about, indent=1, sort_keys=True, default=str) + "\n"
    folder = parent / f"{scheme}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SEARCH).write_text(text, encoding="utf-8")
    return folder


def _enqueue(study: Any, space: dict[str, Range | Choice], defaults: dict[str, Any], trials: int) -> int:
    """Put the defaults first, and all settings if there are no more than `trials`; return how many trials to run."""
    ended = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    if all(trial.state.name == "PRUNED" for trial in ended):
        ended = []  # what made every setting impossible may be mended
    waiting = [trial for trial in study.trials if trial.state.name == "WAITING"]
    if not any(trial.user_attrs.get("defaults") for trial in ended + waiting):
        known = {name: value for name, value in defaults.items() if _inside(value, space[name])}
        study.enqueue_trial(known, user_attrs={"defaults": True})
    every = _every_setting(space, trials)
    others = [setting for setting in every or () if setting != defaults]
    if every is None or len(others) + 1 > trials:
        return max(0, trials - len(ended))
    tried = [trial.params for trial in ended] + [trial.system_attrs["fixed_params"] for trial in waiting]
    for setting in others:
        if setting not in tried:
            study.enqueue_trial(setting)
    return sum(trial.state.name == "WAITING" for trial in study.trials)


def _every_setting(space: Space, most: int) -> list[dict[str, Any]] | None:
    """Return all settings of a space; None if there are more than `most`."""
    if any(isinstance(each, Range) and not each.whole for each in space.values()):
        return None
    values = [
        dict.fromkeys(each.values) if isinstance(each, Choice) else range(int(each.low), int(each.high) + 1)
        for each in space.values()
    ]
    if math.prod(len(each) for each in values) > most:
        return None
    return [dict(zip(space, setting, strict=True)) for setting in itertools.product(*values)]


def geometric_seconds(records: Sequence[RunRecord]) -> float:
    """Return the geometric mean of the times to the target; a missed one counts `MISSED` times as long as it ran."""
    times = [MISSED * record.rounds[-1].clock if record.reached is None else record.reached.clock for record in records]
    return math.exp(sum(math.log(max(time, 1e-3)) for time in times) / len(times))


def default_space(cls: type[Selector[Any]]) -> dict[str, Range | Choice]:
    """Return what the declared constraints of a scheme's options allow.

    Options without declared constraints, and options whose default is 0 or infinite and so has a meaning of its own,
    are left out: name them if you want to search them.
    """
    found: dict[str, Range | Choice] = {}
    values = {item.name: item.default for item in fields(typing.cast(Any, cls))}
    for name, hint in constrained(cls).items():
        default = values[name]
        kind, *rules = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else [hint]
        if typing.get_origin(kind) is typing.Literal:
            found[name] = Choice(typing.get_args(kind))
        elif kind is bool:
            found[name] = Choice((False, True))
        elif kind in (int, float) and isinstance(default, int | float) and default and math.isfinite(default):
            between = next((rule for rule in rules if isinstance(rule, Between)), None)
            low = max([rule.low for rule in rules if isinstance(rule, AtLeast | Above)], default=-math.inf)
            if between is not None:
                margin = 0.01 * (between.high - between.low)
                found[name] = Range(between.low + margin, between.high - margin * (between.ends[1] == ")"))
            elif default > 0:
                found[name] = Range(max(default / WIDE, low + (low == 0 and kind is int)), default * WIDE)
            if kind is int and isinstance(each := found.get(name), Range):
                found[name] = Range(max(1, math.ceil(each.low)), math.floor(each.high), whole=True)
    return found


def parse_space(text: str, cls: type[Selector[Any]]) -> dict[str, Range | Choice]:
    """Return the space that a text names: `k=2:40,epsilon=0.1:0.9,variant=md|uniform`."""
    found: dict[str, Range | Choice] = {}
    hints = typing.get_type_hints(cls)
    for part in [piece.strip() for piece in text.split(",") if piece.strip()] or [text]:
        name, _, values = (piece.strip() for piece in part.partition("="))
        low, colon, high = values.partition(":")
        words = [word.strip() for word in values.split("|")]
        try:
            if not name or name in found or not all(words):
                raise ValueError
            if colon:
                found[name] = Range(float(low), float(high), _whole(hints.get(name)))
            else:
                found[name] = Choice(tuple(dict.fromkeys(_value(word) for word in words)))
        except ValueError as wrong:
            raise InputError(
                "--search takes NAME=LOW:HIGH or NAME=A|B, separated by commas and each name once, such as "
                f'"buffer=2:40,variant=md|uniform", but {part!r} came'
            ) from wrong
    return found


def _value(word: str) -> Any:
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word.lower(), word)


def _whole(hint: Any) -> bool:
    """Return whether an option with this type takes whole numbers only."""
    kinds = typing.get_args(hint) or (hint,)
    return int in kinds and float not in kinds


def _checked(cls: type[Selector[Any]], space: Space) -> dict[str, Range | Choice]:
    """Return the space, with whole ranges for options that are whole; raise if it has a value that is not allowed."""
    known = [item.name for item in fields(typing.cast(Any, cls))]
    hints = typing.get_type_hints(cls)
    found: dict[str, Range | Choice] = {}
    for name, each in space.items():
        if name not in known:
            raise InputError(f"{cls.name} has no option {name!r} to search: it has {', '.join(known) or 'none'}")
        if isinstance(each, Range):
            if not (each.low < each.high and math.isfinite(each.high - each.low)):
                raise InputError(
                    f"expected a range with low < high for {name}, both finite, but {each.low:g} to {each.high:g} came"
                )
            values: tuple[Any, ...] = (each.low, each.high)
            if each.whole or _whole(hints[name]):
                each = replace(each, whole=True)
                values = tuple(int(end) if end == int(end) else end for end in values)
        else:
            values = each.values
            if not values:
                raise InputError(f"expected values to choose from for {name}, but there are none")
        for value in values:
            typed(hints[name], value, option_name(cls, name))
            if name in constrained(cls):
                check_option(constrained(cls)[name], value, option_name(cls, name))
        found[name] = each
    return found


def _inside(value: Any, each: Range | Choice) -> bool:
    """Return whether a range or choice contains a value."""
    if isinstance(each, Choice):
        return value in each.values
    return isinstance(value, int | float) and each.low <= value <= each.high


def _suggest(current: Any, name: str, each: Range | Choice) -> Any:
    if isinstance(each, Choice):
        return current.suggest_categorical(name, list(each.values))
    if each.whole:
        return current.suggest_int(name, int(each.low), int(each.high), log=each.log)
    return current.suggest_float(name, each.low, each.high, log=each.log)


def _run(
    experiment: Experiment, label: str, selector: Selector[Any], seed: int, folder: Path, execution: Execution | None
) -> RunRecord:
    scheme = LabelledScheme(label, selector)
    chosen = replace(experiment, schemes=(scheme,), seeds=(seed,))
    return run_one(chosen, scheme, seed, folder, execution=execution, overwrite=folder.exists())


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as missing:
        raise MissingExtraError("fedpace tune", "tune", "optuna") from missing
    return optuna
