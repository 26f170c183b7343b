"""Parser for component names with options, such as `random(k=5)`, `pace` and `lognormal(median=30)`.

Tables and folders use the whole text as the label, so that one command can compare `random(k=5)` with `random(k=20)`.
Values are written as in TOML; a bare word is a string, to avoid quotes in a shell.
"""

from __future__ import annotations

import tomllib
from typing import Any

from fedpace._base.errors import InputError

OPENING, CLOSING = "([{", ")]}"


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
