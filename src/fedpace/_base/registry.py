"""Catalogues that find schemes, delay models, data sets, models, server steps, trackers and robust rules by name.

A built-in scheme, server rule, delay model or data set is in the file with its name (`power_of_choice.py` contains
`power-of-choice`), so finding it imports only that file; models, trackers and robust rules share one file each. Other
packages register components with an entry point in the group `fedpace.selectors`, `fedpace.delays`,
`fedpace.datasets`, `fedpace.models`, `fedpace.servers` or `fedpace.trackers`. Two components with the same name raise
an error. An unknown name raises an error that lists the known names. Robust rules cannot be added by plug-ins.

Users write a component with its options as in `random(k=5)`, `pace` and `lognormal(median=30)`. Tables and folders use
the whole text as the label, so that one command can compare `random(k=5)` with `random(k=20)`. Values are written as in
TOML; a bare word is a string, to avoid quotes in a shell.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpace._base.checks import check_options, did_you_mean
from fedpace._base.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

OPENING, CLOSING = "([{", ")]}"


@lru_cache(maxsize=8)
def _installed(places: tuple[tuple[str, int], ...], group: str) -> EntryPoints:
    """Return the entry points of a group; cached for the same `places`, because reading takes milliseconds."""
    from importlib.metadata import entry_points  # imported here, because it would slow `import fedpace` by a quarter

    return entry_points(group=group)


def _places() -> tuple[tuple[str, int], ...]:
    """Return the folders of `sys.path` with the times at which packages were last installed or removed there."""
    found = []
    for place in sys.path:
        try:
            found.append((place, Path(place or ".").stat().st_mtime_ns))
        except OSError:  # the folder does not exist
            found.append((place, 0))
    return tuple(found)


def _components(path: str) -> dict[str, Any]:
    """Return name -> class, for the components that a module defines."""
    classes = [each for each in vars(importlib.import_module(path)).values() if inspect.isclass(each)]
    named = [(getattr(each, "name", None), each) for each in classes if each.__module__ == path]
    return {name: each for name, each in named if isinstance(name, str) and name}


class Catalogue:
    """The components of one kind, by name."""

    def __init__(self, kind: str, place: str, group: str) -> None:
        self.kind = kind
        self._place = place
        """Package with one component per file, or module with all of them."""
        self._group = group

    def names(self) -> list[str]:
        """Return the names of all built-in components and plug-ins, sorted."""
        return sorted([*self._built_in(), *self._plugged_in()])

    def __getitem__(self, name: str) -> Any:
        """Return the class registered as `name`."""
        if not isinstance(name, str):
            raise InputError(f"expected the name of a {self.kind}, but {name!r} came; known: {', '.join(self.names())}")
        plugged_in = self._plugged_in()
        built_in = self._find(name)
        if built_in is not None and name in plugged_in:
            raise InputError(
                f"the {self.kind} {name!r} is part of fedpace, but {plugged_in[name].value} registers the same name: "
                "rename or remove the plug-in"
            )
        if built_in is not None:
            return built_in
        if name in plugged_in:
            return self._load(plugged_in[name])
        known = self.names()
        raise InputError(f"there is no {self.kind} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}")

    def make(self, name: str, **options: Any) -> Any:
        """Return the component `name` with these options."""
        cls = self[name]
        check_options(cls, options, name, "option")
        try:
            return cls(**options)
        except (TypeError, OverflowError) as cause:
            given = ", ".join(f"{key} = {value!r:.60}" for key, value in options.items())
            raise InputError(
                f"the options of the {self.kind} {name!r} are of other types: {given} came ({cause})"
            ) from cause

    def _built_in(self) -> list[str]:
        if not self._is_package:
            return list(_components(self._place))
        files = pkgutil.iter_modules(importlib.import_module(self._place).__path__)
        names = [info.name.replace("_", "-") for info in files if not info.name.startswith("_")]
        return [name for name in names if self._find(name) is not None]

    def _find(self, name: str) -> Any:
        """Return the built-in class with this `name`, or None; in a package only the file of that name is imported."""
        place = self._place
        if self._is_package:
            file = name.replace("-", "_")
            place = f"{place}.{file}"
            if not file.isidentifier() or importlib.util.find_spec(place) is None:
                return None
        return _components(place).get(name)

    @property
    def _is_package(self) -> bool:
        return hasattr(importlib.import_module(self._place), "__path__")

    def _plugged_in(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in _installed(_places(), self._group):
            if point.name in found and found[point.name].value != point.value:
                raise InputError(
                    f"two plug-ins are called {point.name!r}: {found[point.name].value} and {point.value}: remove one"
                )
            found[point.name] = point
        return found

    def _load(self, point: EntryPoint) -> Any:
        broken = f"the plug-in {point.value} for the {self.kind} {point.name!r} is broken"
        try:
            found = point.load()
        except Exception as cause:
            raise InputError(f"{broken}: {cause}") from cause
        # Saved sessions and records find the component by its own name.
        if (own := getattr(found, "name", None)) != point.name:
            raise InputError(f"{broken}: it calls itself {own!r}")
        return found


selectors = Catalogue("scheme", "fedpace.selectors", "fedpace.selectors")
delays = Catalogue("delay model", "fedpace.delays", "fedpace.delays")
datasets = Catalogue("data set", "fedpace.data", "fedpace.datasets")
models = Catalogue("model", "fedpace.models.builtin", "fedpace.models")
servers = Catalogue("server step", "fedpace.server", "fedpace.servers")
admission = Catalogue("admission policy", "fedpace.population.policies", "fedpace.admission")
trackers = Catalogue("tracker", "fedpace.tracking.trackers", "fedpace.trackers")
robust = Catalogue("robust rule", "fedpace.trust.robust", "")


# -- names with options ------------------------------------------------------------------------------------------


def split_list(text: str, what: str) -> list[str]:
    """Split the text at commas outside of brackets and quotes, and drop empty pieces."""
    pieces, start, depth, quote = [], 0, 0, ""
    for position, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in OPENING:
            depth += 1
        elif sign in CLOSING:
            depth -= 1
            if depth < 0:
                break
        elif sign == "," and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
    if depth or quote:
        raise InputError(f"{what}: the brackets or quotes of {text!r} do not match; write NAME or NAME(KEY=VALUE, ...)")
    return [piece for piece in (part.strip() for part in [*pieces, text[start:]]) if piece]


def parse_named(text: str, what: str) -> dict[str, Any]:
    """Return the table for `NAME` or `NAME(KEY=VALUE, ...)`, as in `[[selectors]]` of an experiment file."""
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return {"name": name.strip()}
    if not rest.endswith(")") or not name.strip():
        raise InputError(f"{what}: expected NAME or NAME(KEY=VALUE, ...), but {text!r} came")
    options = key_values(split_list(rest[:-1], what), f"{what}: {name.strip()}(...)")
    return {"name": name.strip(), **options}


def key_values(given: list[str], what: str = "--option") -> dict[str, Any]:
    """Return `KEY=VALUE` arguments as options, with values parsed as TOML."""
    options: dict[str, Any] = {}
    for entry in given:
        key, separator, value = entry.partition("=")
        if not separator:
            raise InputError(f"{what} takes KEY=VALUE, but {entry!r} came")
        try:
            options[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = value.strip()
    return options


def scheme_table(text: str, what: str) -> dict[str, Any]:
    """Return the table of a scheme; if it has options but no label, its text becomes the label."""
    table = parse_named(text, what)
    if len(table) > 1 and "label" not in table:
        table["label"] = "".join(text.split()).replace(",", ", ").replace("/", "|")
    return table
