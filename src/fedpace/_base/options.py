"""Options with declared constraints: one place checks them when a component is created.

    @dataclass(frozen=True)
    class Fastest(Stateless):                        # Scheme and Stateless derive from Options; server rules do too
        name: ClassVar[str] = "fastest"

        k: Annotated[int, AtLeast(1)] = 10
        patience: Annotated[float, Above(0), FINITE] = 2.0
        mode: Literal["strict", "soft"] = "strict"

    Fastest(k=0)        # InputError: k of fastest must be at least 1, but 0 came

The type is part of the constraint: an `int` must be a whole number, a `bool` True or False, a `str` text, and a
`Literal` one of its words. A rule about several options at once belongs into `__post_init__`, after
`super().__post_init__()`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import is_number, one_of, shortened
from fedpace._base.errors import InputError


@dataclass(frozen=True)
class AtLeast:
    """A number of at least `low`; with `zero`, 0 is allowed too, and `zero` says in words what it does."""

    low: float
    zero: str = ""

    @property
    def text(self) -> str:
        """The condition in words."""
        return f"be at least {self.low:g}" + (f", or 0 to {self.zero}" if self.zero else "")

    def holds(self, value: Any) -> bool:
        """Return whether the value is large enough."""
        return bool(value >= self.low or (self.zero and value == 0))


@dataclass(frozen=True)
class Above:
    """A number above `low`."""

    low: float

    @property
    def text(self) -> str:
        """The condition in words."""
        return f"be above {self.low:g}"

    def holds(self, value: Any) -> bool:
        """Return whether the value is larger."""
        return bool(value > self.low)


@dataclass(frozen=True)
class Between:
    """A number in the interval from `low` to `high`; `ends` are its brackets, such as `(]` without `low` itself."""

    low: float
    high: float
    ends: str = "[]"

    @property
    def text(self) -> str:
        """The condition in words."""
        if self.ends == "[]":
            return f"lie between {self.low} and {self.high}"
        return f"lie in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"

    def holds(self, value: Any) -> bool:
        """Return whether the value lies in the interval."""
        over = value >= self.low if self.ends[0] == "[" else value > self.low
        return bool(over and (value <= self.high if self.ends[1] == "]" else value < self.high))


@dataclass(frozen=True)
class Finite:
    """A number that is not infinite."""

    text: ClassVar[str] = "be a finite number"

    def holds(self, value: Any) -> bool:
        """Return whether the value is finite."""
        return math.isfinite(value)


FINITE = Finite()
CONSTRAINTS = (AtLeast, Above, Between, Finite)


class Options:
    """Base class of dataclasses whose fields are options: it checks their declared constraints.

    Errors call an option "k of random" if the class has a `name`. Set `options_of` where the class has none, such as
    `options_of = "clock"`; the empty text leaves the name of the option alone.
    """

    options_of: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Raise InputError for the first option that breaks its constraints."""
        for name, hint in constrained(type(self)).items():
            check_option(hint, getattr(self, name), option_name(type(self), name))


def check_option(hint: Any, value: Any, what: str) -> None:
    """Raise InputError if a value breaks the constraints of its type hint; `what` names the option in the error."""
    parts = typing.get_args(hint)
    if type(None) in parts:
        others = [part for part in parts if part is not type(None)]
        if value is not None and len(others) == 1:
            check_option(others[0], value, what)
        return
    kind, *rest = parts if typing.get_origin(hint) is typing.Annotated else [hint]
    rules = [rule for rule in rest if isinstance(rule, CONSTRAINTS)]
    if typing.get_origin(kind) is typing.Literal:
        one_of(value, typing.get_args(kind), what)
    elif kind is bool:
        if not isinstance(value, bool | np.bool_):  # the text "no" is true in Python
            raise InputError(f"{what} must be True or False, but {shortened(value)} came")
    elif kind is str:
        if not isinstance(value, str):
            raise InputError(f"{what} must be text, but {shortened(value)} came")
    elif kind is int and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
        low = next((f" of at least {rule.low:g}" for rule in rules if isinstance(rule, AtLeast)), "")
        raise InputError(f"{what} must be a whole number{low}, but {shortened(value)} came")
    for rule in rules:
        if not (is_number(value) and rule.holds(value)):
            raise InputError(f"{what} must {rule.text}, but {shortened(value)} came")


def option_name(cls: type, name: str) -> str:
    """Return the name of an option in errors, such as `k of random`."""
    owner = getattr(cls, "options_of", None)
    if owner is None:
        owner = getattr(cls, "name", "")
    return f"{name} of {owner}" if isinstance(owner, str) and owner else name


_constrained: dict[type, dict[str, Any]] = {}


def constrained(cls: type) -> dict[str, Any]:
    """Return field name -> type hint with its constraints, for the fields of a dataclass that have any."""
    if cls not in _constrained:
        names = {item.name for item in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
        hints: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            own = {name: hint for name, hint in vars(base).get("__annotations__", {}).items() if name in names}
            if own:
                holder = type("Holder", (), {"__annotations__": own})
                hints |= typing.get_type_hints(holder, vars(sys.modules[base.__module__]), include_extras=True)
        _constrained[cls] = {name: hint for name, hint in hints.items() if _checks_anything(hint)}
    return _constrained[cls]


def _checks_anything(hint: Any) -> bool:
    if hint in (int, bool, str) or typing.get_origin(hint) is typing.Literal:
        return True
    return any(isinstance(part, CONSTRAINTS) or _checks_anything(part) for part in typing.get_args(hint))
