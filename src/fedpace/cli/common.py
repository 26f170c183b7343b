"""Helpers that several commands use."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    from fedpace.records.run import plain

    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
