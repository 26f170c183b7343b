"""`build` turns a TOML table into a frozen dataclass; it checks names and types of all keys."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any

from fedpace._base.checks import check_options, did_you_mean
from fedpace._base.errors import FedpaceError, InputError, MissingExtraError

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
"""Phrases in pydantic's messages, and their replacements for users who write TOML."""


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
    """Translate a pydantic message for users who write TOML."""
    said = message[:1].lower() + message[1:]
    for theirs, ours in WORDS.items():
        said = said.replace(theirs, ours)
    return said


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
