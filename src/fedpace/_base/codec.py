"""Conversion of dataclasses and named tuples to JSON and back, by their type hints; new fields need no extra code.

JSON has no infinity, NaN or tuples, and only text keys. Numbers that are not finite are tagged, and arrays are stored
in a table beside the JSON, which refers to them by name. Client ids are written as they are if they are text or
integers, and tagged otherwise; an id that cannot be restored exactly raises InputError. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError

ClientId = Hashable
"""The host's name for a client: anything hashable."""
MAX_ID_BITS = 4096
"""Most bits of an integer id: Python limits the digits that it converts to text."""

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]

_hints: dict[type, dict[str, Any]] = {}


def encode(value: Any, arrays: Arrays | None = None) -> Any:
    """Return `value` as JSON; if `arrays` is given, arrays are stored there and the JSON holds their names."""
    if names := _fields(type(value)):
        hints = _hints_of(type(value))
        return {name: _encode_field(hints[name], getattr(value, name), arrays) for name in names}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if arrays is None:
            return value.tolist()
        name = f"array-{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, Mapping):
        return [[encode(key), encode(item, arrays)] for key, item in value.items()]
    if isinstance(value, frozenset | set):
        return sorted(encode(item) for item in value)
    if isinstance(value, list | tuple):
        return [encode(item, arrays) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"a {type(value).__name__} cannot be saved: states and options hold scalars, text and tuples")


def decode(hint: Any, raw: Any, arrays: Mapping[str, NDArray[Any]] | None = None) -> Any:
    """Return the value of type `hint` that `encode` converted; data that do not fit raise TypeError or ValueError."""
    if hint is ClientId:
        return decode_id(raw)
    if isinstance(raw, dict) and set(raw) == {"float"}:
        return float(raw["float"])
    if isinstance(raw, dict) and set(raw) == {"array"}:
        return (arrays or {})[raw["array"]]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [part for part in parts if part is not type(None)]
        return None if raw is None else decode(kinds[0] if len(kinds) == 1 else Any, raw, arrays)
    if isinstance(hint, type) and _fields(hint):
        hints = _hints_of(hint)
        return hint(**{name: decode(hints[name], part, arrays) for name, part in raw.items()})
    if origin is tuple:
        items = [parts[0]] * len(raw) if parts[1:] == (...,) else parts
        return tuple(decode(kind, item, arrays) for kind, item in zip(items, raw, strict=True))
    if origin in (list, set, frozenset):
        return origin(decode(parts[0], item, arrays) for item in raw)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {decode(parts[0], key): decode(parts[1], item, arrays) for key, item in raw}
    if origin is np.ndarray:
        return np.asarray(raw, dtype=typing.get_args(parts[1])[0])
    if hint in (bool, int, float, str) or (isinstance(hint, type) and issubclass(hint, Enum)):
        return hint(raw)
    return _tuples(raw)


def gathered(cls: type[T], *sources: Mapping[str, Any]) -> T:
    """Return a dataclass with each field taken by name from the first of `sources` that has it.

    Lists become tuples. Fields that no source has keep their defaults.
    """
    found: dict[str, Any] = {}
    for source in reversed(sources):
        found |= source
    given = {name: found[name] for name in _fields(cls) if name in found}
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _fields(cls: type) -> tuple[str, ...]:
    """Return the field names of a dataclass or a named tuple; empty for other types."""
    if dataclasses.is_dataclass(cls):
        return tuple(item.name for item in dataclasses.fields(cls))
    return getattr(cls, "_fields", ())


def _encode_field(hint: Any, value: Any, arrays: Arrays | None) -> Any:
    """Encode a field; client ids, by the type hint, with `encode_id`."""
    if hint is ClientId:
        return encode_id(value)
    parts = typing.get_args(hint)
    if parts and parts[0] is ClientId and not isinstance(value, Mapping):
        return [encode_id(item) for item in value]
    return encode(value, arrays)


def _hints_of(cls: type) -> dict[str, Any]:
    if cls not in _hints:
        _hints[cls] = typing.get_type_hints(cls)
    return _hints[cls]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


# -- client ids ----------------------------------------------------------------------------------------------------


def encode_id(client: ClientId) -> Any:
    """Return `client` as a JSON value."""
    if isinstance(client, np.integer):
        client = int(client)
    if isinstance(client, bool):
        return {"bool": client}
    if client is None:
        return {"none": True}
    if isinstance(client, int) or (isinstance(client, str) and is_text(client)):
        return client
    if isinstance(client, float):
        return {"float": client.hex()}
    if isinstance(client, bytes):
        return {"bytes": client.hex()}
    if isinstance(client, tuple):
        return {"tuple": [encode_id(part) for part in client]}
    found = "text that UTF-8 cannot hold" if isinstance(client, str) else f"a {type(client).__name__}"
    raise InputError(
        f"client {client!r} cannot be saved: ids are written as str, int, float, bytes, bool, None or tuples of "
        f"these, but this one is {found}; give the client a plain id"
    )


def check_id(client: ClientId) -> None:
    """Raise InputError for an id that differs from itself, such as NaN, or that has too many bits to be saved."""
    if client != client:
        raise InputError(f"a client id must be equal to itself, but {client!r} is not: give the client another")
    if isinstance(client, int) and client.bit_length() > MAX_ID_BITS:
        raise InputError(f"a client id must have at most {MAX_ID_BITS} bits, but one of {client.bit_length()} came")


def decode_id(value: Any) -> ClientId:
    """Return the client id that `encode_id` converted."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((tag, content),) = value.items()
        if tag == "bool" and isinstance(content, bool):
            return content
        if tag == "none":
            return None
        if tag == "tuple" and isinstance(content, list):
            return tuple(decode_id(part) for part in content)
        with contextlib.suppress(ValueError):
            if tag == "float" and isinstance(content, str):
                return float.fromhex(content)
            if tag == "bytes" and isinstance(content, str):
                return bytes.fromhex(content)
    raise InputError(f"{value!r} is not a saved client id")


def is_text(value: str) -> bool:
    """Return whether UTF-8 can encode the text; a file name with undecodable bytes, for example, cannot be saved."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
