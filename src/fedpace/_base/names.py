"""Clients' names as they may be shown: names come from outside, and a terminal or a spreadsheet obeys some of them.

Use `shown` wherever a name meets a terminal, a log or an error, `printable` for other text from outside, and `cell` for
what goes into a CSV file. Files of ours (JSON, npz) keep names as they are.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

LONGEST = 120
"""Characters of a name that are shown."""

# C0 and C1 controls with newline, tab and escape; DEL; Arabic letter mark, zero-width and directional marks, line and
# paragraph separators, bidirectional embeddings, overrides and isolates, invisible operators; byte order mark; lone
# surrogates, which cannot be encoded; tags, which are invisible.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula (OWASP, CSV injection), full-width signs included."""


def printable(text: str) -> str:
    """Return text with every control character, line break and bidirectional mark as an escape such as `\\x1b`."""
    return _UNSAFE.sub(_escaped, text)


def shown(name: Hashable, longest: int = LONGEST) -> str:
    """Return a client's name for a terminal, a log or an error: in quotes if it is text, escaped, and not too long."""
    try:
        text = printable(repr(name))
    except Exception:  # a class of somebody else's, whose repr fails: an error about it must still be told
        text = f"<{type(name).__name__}>"
    return text if len(text) <= longest else text[: longest - 3] + "..."


def bare(name: Hashable, longest: int = LONGEST) -> str:
    """Return a client's name without quotes, for columns of names: escaped, and not too long."""
    text = printable(str(name))
    return text if len(text) <= longest else text[: longest - 3] + "..."


def cell(value: object) -> object:
    """Return a cell of a CSV file: text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if not isinstance(value, str):
        return value
    safe = printable(value)
    return "'" + safe if value.startswith(FORMULA) else safe


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
