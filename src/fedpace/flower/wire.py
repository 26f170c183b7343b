"""What server and clients say to each other beside the model: the keys.

Asked in the ConfigRecord that Flower's strategies send anyway: its clipping mods refuse messages with a second one.
Answered in a ConfigRecord of its own: Flower's strategies demand one ArrayRecord and one MetricRecord with equal keys
in every reply, but leave ConfigRecords alone, and only these hold text and bytes. So clients with and without the mod
can be mixed, and a server without fedpace is not disturbed. All questions are train messages, since those are what
every client understands: a client without the mod simply trains, and the server makes do with that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from fedpace.hosting.replies import Note, Raw, parse
from fedpace.hosting.sketch import Arrays

RECORD = "fedpace"
"""The ConfigRecord in a reply."""
ASK_NAME = "fedpace-who"
"""In a train message without a model: say who you are, do not train."""
ASK_SAMPLES = "fedpace-samples"
"""Along with the name: how many samples do you hold?"""
ASK_LABELS = "fedpace-labels"
"""Along with the name: how many of each class?"""
ASK_MOMENT = "fedpace-moment"
"""In a train message: True = send a feature moment too."""
ASK_TARGETS = "fedpace-targets"
"""Along with the moment: one of features and targets together."""
ASK_GRADIENT = "fedpace-gradient"
"""In a train message: send only the sketch of a step from this model; the model itself stays at home."""
SKETCH_WIDTH = "fedpace-sketch-width"
SKETCH_SEED = "fedpace-sketch-seed"
"""Along with the gradient: the projection. The seed is text, since it may be larger than Flower's integers."""


def asked(message: Message, key: str) -> bool:
    """Whether the server put `key` into any of the message's configs."""
    return any(bool(config.get(key, False)) for config in message.content.config_records.values())


def config_value(message: Message, key: str) -> Any:
    """Return what the server put under `key`; None where it did not."""
    return next((config[key] for config in message.content.config_records.values() if key in config), None)


def record(arrays: Arrays) -> ArrayRecord:
    """Return a model as Flower sends it."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def unpacked(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return a model as NumPy arrays."""
    return {key: array.numpy() for key, array in arrays.items()}


def arrays_of(message: Message) -> dict[str, NDArray[Any]]:
    """Return the model in a message, as NumPy arrays."""
    return unpacked(next(iter(message.content.array_records.values()), ArrayRecord()))


def reported_seconds(reply: Message) -> float:
    """Return the seconds that `report_mod` stamped on a reply; NaN for an error, or for a client without the mod."""
    note = "" if reply.has_error() else note_of(reply)
    return math.nan if isinstance(note, str) else note.seconds


def note_of(reply: Message) -> Note | str:
    """Return what the mod put into a reply, or why it cannot be used; an empty Note where there is no mod."""
    found = parse(lambda: Raw(reply.content.config_records.get(RECORD, {})))
    return found if isinstance(found, str) else found.note
