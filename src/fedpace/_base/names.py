"""Safe display of client names, which are untrusted and may contain terminal control codes or spreadsheet formulas.

Use `shown` for names in a terminal, a log or an error, `printable` for other untrusted text, and `cell` for values in a
CSV file. The JSON and npz files of fedpace store names unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

LONGEST = 120
"""Most characters of a name to show."""

# C0 and C1 controls with newline, tab and escape; DEL; Arabic letter mark, zero-width and directional marks, line and
# paragraph separators, bidirectional embeddings, overrides and isolates, invisible operators; byte order mark; lone
# surrogates, which cannot be encoded; tags, which are invisible.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that a spreadsheet reads as a formula (OWASP, CSV injection), including full-width signs."""


def printable(text: str) -> str:
    """Return text with every control character, line break and bidirectional mark as an escape such as `\\x1b`."""
    return _UNSAFE.sub(_escaped, text)


def shown(name: Hashable, longest: int = LONGEST) -> str:
    """Return a client's name for a terminal, a log or an error: quoted if it is text, escaped and cut to `longest`."""
    try:
        text = printable(repr(name))
    except Exception:  # the repr of a foreign class may fail; still show something
        text = f"<{type(name).__name__}>"
    return text if len(text) <= longest else text[: longest - 3] + "..."


def bare(name: Hashable, longest: int = LONGEST) -> str:
    """Return a client's name without quotes, for columns of names: escaped and cut to `longest`."""
    text = printable(str(name))
    return text if len(text) <= longest else text[: longest - 3] + "..."


def cell(value: object) -> object:
    """Return a value for a CSV cell; an apostrophe is put before text that a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    safe = printable(value)
    return "'" + safe if value.startswith(FORMULA) else safe


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
