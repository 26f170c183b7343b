"""`check_types` checks the field values of a dataclass that was read from a file against its type hints."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedpace._base.errors import InputError

_known: dict[type, dict[str, Any]] = {}


def check_types(instance: Any) -> None:
    """Raise `InputError` if a field of the dataclass instance does not match its type hint."""
    hints = _hints(type(instance))
    for item in fields(instance):
        value = getattr(instance, item.name)
        if not _fits(hints[item.name], value):
            raise InputError(f"{item.name} cannot be {str(value)[:60]!r}")


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _known:
        _known[cls] = typing.get_type_hints(cls)
    return _known[cls]


def _fits(hint: Any, value: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(parts[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) < 1e300 and not math.isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or hint is object or isinstance(value, hint)
