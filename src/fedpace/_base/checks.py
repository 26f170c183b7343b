"""Argument checks: invalid input raises an InputError that says what is wrong, before it can turn into NaN.

Client names are untrusted, and may contain terminal control codes or spreadsheet formulas. Use `shown` for names in a
terminal, a log or an error, `printable` for other untrusted text, and `cell` for values in a CSV file. The JSON and npz
files of fedpace store names unchanged.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.errors import InputError

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


def bare(name: Hashable) -> str:
    """Return a client's name without quotes, for columns of names: escaped and cut to `LONGEST`."""
    text = printable(str(name))
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def cell(value: object) -> object:
    """Return a value for a CSV cell; an apostrophe is put before text that a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    safe = printable(value)
    return "'" + safe if value.startswith(FORMULA) else safe


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LARGEST = 1e70
"""Largest valid absolute value in moments and sketches."""

Naming = Callable[[int], str]
"""Function: row -> name of its client in error messages, such as `client 'phone-7'`."""


_arrays: dict[type, dict[str, Any]] = {}


def row_name(row: int) -> str:
    """Return a name for a row if no client ids are known."""
    return f"client {row}"


def frozen(values: ArrayLike, dtype: Any = np.float64) -> NDArray[Any]:
    """Return a read-only copy of an array."""
    array = np.array(values, dtype=dtype, copy=True)
    array.setflags(write=False)
    return array


def freeze(instance: object) -> None:
    """Replace arrays, and dicts of arrays, of a frozen dataclass by read-only copies of the declared type.

    None stays None.
    """
    for name, dtype in array_fields(type(instance)).items():
        value = getattr(instance, name)
        if isinstance(value, Mapping):
            object.__setattr__(instance, name, {key: frozen(array, dtype) for key, array in value.items()})
        elif value is not None:
            object.__setattr__(instance, name, frozen(value, dtype))


def array_fields(cls: type) -> dict[str, Any]:
    """Return field name -> type of the entries, for the array fields of a dataclass."""
    if cls not in _arrays:
        hints = typing.get_type_hints(cls)
        found = {name: dtype for name, hint in hints.items() if (dtype := _entries(hint)) is not None}
        _arrays[cls] = found
    return _arrays[cls]


def _entries(hint: Any) -> Any:
    """Return the type of the entries of an array, an array or None, or a mapping to arrays; None for any other type."""
    if typing.get_origin(hint) is np.ndarray:
        return typing.get_args(typing.get_args(hint)[1])[0]
    if typing.get_origin(hint) is Mapping:
        return _entries(typing.get_args(hint)[1])
    inner = [_entries(part) for part in typing.get_args(hint) if part is not type(None)]
    return inner[0] if len(inner) == 1 else None


def float_array(values: ArrayLike, what: str, *, ndim: int = 1, finite: bool = True) -> FloatArray:
    """Return `values` as a float64 array; raise InputError for another number of axes or, if `finite`, NaN or inf."""
    try:
        given = np.asarray(values)
        if given.dtype.kind == "c" or (given.dtype.kind == "O" and any(map(np.iscomplexobj, given.flat))):
            raise TypeError("complex numbers lose their imaginary part")
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as cause:
        raise InputError(f"{what} must be numbers, but {shortened(values)} came") from cause
    if array.ndim != ndim:
        raise InputError(f"{what} must have {ndim} axes, but an array of shape {array.shape} came")
    if finite and not np.isfinite(array).all():
        where = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"{what} must be finite, but entry {where} is {array[where]}")
    return array


def of_ordinary_size(array: FloatArray, what: str) -> None:
    """Raise InputError if an entry exceeds `LARGEST`: a product of four such entries would overflow."""
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST:
        raise InputError(f"{what} must hold numbers of ordinary size, but {largest:.3g} came: training diverged")


def delays(values: ArrayLike, *, count: int | None = None, name: Naming = row_name) -> FloatArray:
    """Return delays as an array; raise InputError unless there is one per client, each finite and at least 0."""
    array = float_array(values, "delays", finite=False)
    if count is not None and array.size != count:
        raise InputError(f"expected {count} delays, one per client, but {array.size} came")
    if array.size == 0:
        raise InputError("expected the delay of at least one client, but none came")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        hint = "never observed: run a warm-up or leave the client out" if np.isnan(array[row]) else "check its source"
        raise InputError(
            f"the delay of {name(row)} must be a finite number of seconds, at least 0, but it is {array[row]} ({hint})"
        )
    return array


def shares(values: ArrayLike | None, count: int, *, name: Naming = row_name) -> FloatArray:
    """Return the clients' weights in the objective, scaled to sum 1; equal weights if `values` is None."""
    if count < 1:
        raise InputError("expected at least one client, but there are none")
    if values is None:
        return np.full(count, 1.0 / count)
    array = float_array(values, "shares", finite=False)
    if array.size != count:
        raise InputError(f"expected {count} shares, one per client, but {array.size} came")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"the share of {name(row)} must be a finite number of at least 0, but it is {array[row]}")
    total = float(array.sum())
    if total <= 0:
        raise InputError("the shares must not all be 0: at least one client must count in the objective")
    return array / total


def shares_among(values: FloatArray, rows: IntArray) -> FloatArray:
    """Return the shares of `rows`, scaled to sum 1; equal shares if all of them are 0."""
    own = values[rows]
    return shares(own if own.any() else None, rows.size)


def at_least(value: float, low: float, what: str) -> None:
    """Raise InputError unless `value` is a number of at least `low`."""
    if not (is_number(value) and value >= low):
        raise InputError(f"{what} must be at least {low:g}, but {shortened(value)} came")


def above(value: float, low: float, what: str) -> None:
    """Raise InputError unless `value` is a number above `low`."""
    if not (is_number(value) and value > low):
        raise InputError(f"{what} must be above {low:g}, but {shortened(value)} came")


def finite(value: float, what: str) -> None:
    """Raise InputError unless `value` is a finite number that a float can hold."""
    if not (is_number(value) and math.isfinite(value)):
        raise InputError(f"{what} must be a finite number, but {shortened(value)} came")


def between(value: float, low: float, high: float, what: str) -> None:
    """Raise InputError unless `value` is a number in [low, high]."""
    if not (is_number(value) and low <= value <= high):
        raise InputError(f"{what} must lie between {low} and {high}, but {shortened(value)} came")


def whole(value: int, low: int, what: str) -> None:
    """Raise InputError unless `value` is an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{what} must be a whole number of at least {low}, but {value!r} came")
    at_least(int(value), low, what)


def one_of(value: str, allowed: Sequence[str], what: str) -> None:
    """Raise an InputError that lists the allowed words unless `value` is one of them."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{what} must be one of {', '.join(map(repr, allowed))}, but {shortened(value)} came")


def real(value: Any, what: str) -> float:
    """Return a number as a float, also NaN and infinity; raise InputError for text and for too large integers."""
    if type(value) is float:  # fast path: called several times per client and round
        return value
    try:
        if isinstance(value, str | bytes | bytearray) or np.iscomplexobj(value):
            raise TypeError("text, or complex")
        return float(value)
    except (TypeError, ValueError, OverflowError) as cause:
        raise InputError(f"{what} must be a number, but {shortened(value)} came") from cause


def listed(values: Iterable[Any], what: str) -> list[Any]:
    """Return an iterable as a list; raise InputError for a single text and for values that are not iterable."""
    try:
        if isinstance(values, str | bytes):
            raise TypeError("text")
        return list(values)
    except TypeError as cause:
        raise InputError(f"{what} must be a list, but {shortened(values)} came: put it into a list") from cause


def check_commas(names: Sequence[str], where: str) -> None:
    """Raise InputError if a CSV header has one column that contains semicolons, tabs or bars instead of commas."""
    if len(names) == 1:
        for sign, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if sign in names[0]:
                raise InputError(f"{where}: its columns are separated by {called}: write it with commas")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the hint ` Did you mean ...?` for an unknown word; empty if no known word is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_options(
    cls: Any, options: Iterable[str], what: str, kind: str = "option", others: Sequence[str] = ()
) -> None:
    """Raise InputError for options that a component does not have, and for a missing option without default.

    `others` are further names that the hint for a misspelt option may suggest.
    """
    fields = dataclasses.fields(cls)
    known = [item.name for item in fields]
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise InputError(
                f"{what} has no {kind} {option!r}.{did_you_mean(option, [*known, *others])} Known {kind}s: {listed}"
            )
    nothing = dataclasses.MISSING
    needed = [item.name for item in fields if item.default is nothing and item.default_factory is nothing]
    if missing := [name for name in needed if name not in options]:
        raise InputError(f"{what} lacks its {kind} {missing[0]!r}, which has no default")


def is_number(value: object) -> bool:
    """Return whether `value` is a number that a float can hold; True and False are not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return not isinstance(value, int) or value.bit_length() <= 1023


def shortened(value: object, limit: int = 60) -> str:
    """Return a short text of a value for error messages."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
