"""Helpers that make the arrays in frozen dataclasses read-only, by the types of the fields."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np

from fedpace._base.checks import frozen

_arrays: dict[type, dict[str, Any]] = {}


def freeze(instance: object) -> None:
    """Replace the arrays of a frozen dataclass by read-only copies of the declared type; None stays None."""
    for name, dtype in array_fields(type(instance)).items():
        value = getattr(instance, name)
        if value is not None:
            object.__setattr__(instance, name, frozen(value, dtype))


def array_fields(cls: type) -> dict[str, Any]:
    """Return field name -> type of the entries, for the array fields of a dataclass."""
    if cls not in _arrays:
        hints = typing.get_type_hints(cls)
        found = {name: dtype for name, hint in hints.items() if (dtype := _entries(hint)) is not None}
        _arrays[cls] = found
    return _arrays[cls]


def _entries(hint: Any) -> Any:
    """Return the type of the entries of `NDArray[...]` or `NDArray[...] | None`; None for any other type."""
    if typing.get_origin(hint) is np.ndarray:
        return typing.get_args(typing.get_args(hint)[1])[0]
    inner = [_entries(part) for part in typing.get_args(hint) if part is not type(None)]
    return inner[0] if len(inner) == 1 else None
