"""Catalogues that find schemes, delay models, data sets, models, server steps and robust rules by name.

A built-in component is in the file with its name (`power_of_choice.py` contains `power-of-choice`), so finding it
imports only that file. Other packages register components with an entry point in the group `fedpace.selectors`,
`fedpace.delays`, `fedpace.datasets`, `fedpace.models` or `fedpace.servers`. Two components with the same name raise an
error. An unknown name raises an error that lists the known names. Robust rules are all in `fedpace.trust.robust`, and
cannot be added by plug-ins.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpace._base.checks import check_options, current_options, did_you_mean
from fedpace._base.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


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


class Catalogue:
    """The components of one kind, by name."""

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind = kind
        self._package = package
        self._group = group

    def names(self) -> list[str]:
        """Return the names of all built-in components and plug-ins, sorted."""
        return sorted([*self._built_in(), *self._plugged_in()])

    def __getitem__(self, name: str) -> Any:
        """Return the class registered as `name`."""
        if not isinstance(name, str):
            raise InputError(f"expected the name of a {self.kind}, but {name!r} came; known: {', '.join(self.names())}")
        plugged_in = self._plugged_in()
        built_in = self._find(name.replace("-", "_"), name)
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
        options = current_options(cls, options)
        check_options(cls, options, name, "option")
        try:
            return cls(**options)
        except (TypeError, OverflowError) as cause:
            given = ", ".join(f"{key} = {value!r:.60}" for key, value in options.items())
            raise InputError(
                f"the options of the {self.kind} {name!r} are of other types: {given} came ({cause})"
            ) from cause

    def _built_in(self) -> list[str]:
        package = importlib.import_module(self._package)
        modules = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")]
        return [name for module in modules if self._find(module, name := module.replace("_", "-")) is not None]

    def _find(self, module_name: str, name: str) -> Any:
        """Return the class with this `name` in a module; None if there is no such module or class."""
        path = f"{self._package}.{module_name}"
        if not module_name.isidentifier() or importlib.util.find_spec(path) is None:
            return None
        module = importlib.import_module(path)
        found = [
            value
            for value in vars(module).values()
            if inspect.isclass(value) and value.__module__ == path and getattr(value, "name", None) == name
        ]
        return found[0] if found else None

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


class RobustRules(Catalogue):
    """The robust rules of `fedpace.trust.robust`."""

    def __init__(self) -> None:
        super().__init__("robust rule", "fedpace.trust.robust", "")

    def names(self) -> list[str]:
        """Return the name of every rule, sorted."""
        from fedpace.trust.robust import ROBUST

        return sorted(ROBUST)

    def _find(self, module_name: str, name: str) -> Any:
        from fedpace.trust.robust import ROBUST

        return ROBUST.get(name)

    def _plugged_in(self) -> dict[str, EntryPoint]:
        return {}


selectors = Catalogue("scheme", "fedpace.selectors", "fedpace.selectors")
delays = Catalogue("delay model", "fedpace.delays", "fedpace.delays")
datasets = Catalogue("data set", "fedpace.data", "fedpace.datasets")
models = Catalogue("model", "fedpace.models", "fedpace.models")
servers = Catalogue("server step", "fedpace.server", "fedpace.servers")
robust = RobustRules()
