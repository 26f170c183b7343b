"""What the commands share."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import Any

from fedpace.core.errors import InputError
from fedpace.records.run import plain


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def key_values(given: list[str], what: str = "--option") -> dict[str, Any]:
    """Return `KEY=VALUE` arguments as options, each value as TOML has it."""
    options: dict[str, Any] = {}
    for entry in given:
        key, separator, value = entry.partition("=")
        if not separator:
            raise InputError(f"{what} takes KEY=VALUE, but {entry!r} came")
        try:
            options[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = value  # a bare word: quotes are a nuisance in a shell
    return options
