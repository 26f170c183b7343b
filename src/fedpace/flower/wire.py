"""What server and clients say to each other beside the model: the keys, and how a moment becomes bytes.

Asked in the ConfigRecord that Flower's strategies send anyway: its clipping mods refuse messages with a second one.
Answered in a ConfigRecord of its own: Flower's strategies demand one ArrayRecord and one MetricRecord with equal keys
in every reply, but leave ConfigRecords alone, and only these hold text and bytes. So clients with and without the mod
can be mixed, and a server without fedpace is not disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message

from fedpace.core.checks import FloatArray
from fedpace.core.errors import InputError

RECORD = "fedpace"
"""The ConfigRecord in a reply."""
ASK_NAME = "fedpace-who"
"""In a train message without a model: say who you are, do not train."""
ASK_MOMENT = "fedpace-moment"
"""In a train message: True = send a feature moment too."""
WIDEST = 65_536
"""Features that a reported moment may have at most: a broken client must not fill the server's memory."""


@dataclass(frozen=True, eq=False)
class Note:
    """What a client's mod reported."""

    name: str = ""
    """Stable name; empty = it has none."""
    seconds: float = math.nan
    compute: float = math.nan
    moment: FloatArray | None = None


def asked(message: Message, key: str) -> bool:
    """Whether the server put `key` into any of the message's configs."""
    return any(bool(config.get(key, False)) for config in message.content.config_records.values())


def pack_moment(factor: FloatArray) -> dict[str, Any]:
    """Return a factor as entries of a ConfigRecord, in single precision: half the bytes, and far below its noise."""
    return {"moment": np.ascontiguousarray(factor, dtype="<f4").tobytes(), "shape": [int(n) for n in factor.shape]}


def unpack_moment(record: Mapping[str, Any]) -> FloatArray | None:
    """Return the factor in a reply's record, None where there is none; a damaged one is an InputError."""
    data, shape = record.get("moment"), record.get("shape")
    if data is None:
        return None
    if not (isinstance(data, bytes) and isinstance(shape, list) and len(shape) == 2 and 0 < int(shape[1]) <= WIDEST):
        raise InputError(f"a moment should be bytes with a shape of two numbers, but the shape is {shape!r}")
    rows, width = int(shape[0]), int(shape[1])
    if rows < 0 or len(data) != 4 * rows * width:
        raise InputError(f"a moment of shape {shape} should have {4 * rows * width} bytes, but {len(data)} came")
    factor = np.frombuffer(data, dtype="<f4").reshape(rows, width).astype(np.float64)
    if not np.isfinite(factor).all():
        raise InputError("a moment should be finite, but it holds NaN or infinity")
    return factor


def read_note(reply: Message) -> Note:
    """Return what the mod put into a reply; an empty Note where there is no mod. A damaged record is an InputError."""
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    try:
        seconds, compute = (float(record.get(key, math.nan)) for key in ("seconds", "compute"))  # type: ignore[arg-type]
    except (TypeError, ValueError) as cause:
        raise InputError(f"reported seconds should be numbers, but {dict(record)} came") from cause
    if not math.isnan(seconds) and not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"reported seconds should be finite and at least 0, but {seconds} came")
    return Note(str(record.get("name", "")), seconds, compute, unpack_moment(record))


def reported_seconds(reply: Message) -> float:
    """Return the seconds that `report_mod` stamped on a reply; NaN for an error, or for a client without the mod."""
    return math.nan if reply.has_error() else read_note(reply).seconds
