"""Keys of the messages between fedpace's Flower server and `report_mod`, and helpers to read and write them.

Questions go into the ConfigRecord that Flower's strategies send anyway, because Flower's clipping mods reject messages
with a second one. Answers go into a separate ConfigRecord: Flower's strategies demand one ArrayRecord and one
MetricRecord with equal keys in every reply, but ignore ConfigRecords, and only ConfigRecords hold text and bytes. So
clients with and without the mod can be mixed, and a server without fedpace is not disturbed. All questions are train
messages, which every client understands: a client without the mod trains, and the server uses its update.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from fedpace._base.checks import whole
from fedpace.hosting.replies import Arrays, Note, Raw, parse, steps_of_work

RECORD = "fedpace"
"""Key of fedpace's ConfigRecord in a reply."""
PARCEL = "fedpace-parcel"
"""In a train message: what a client needs to seal its update for a trusted aggregator."""
SEALED = "fedpace-sealed"
"""Key of the ConfigRecord with the sealed update in a reply, and with the client's memory in its context."""
ASK_NAME = "fedpace-who"
"""In a train message without a model: send your name, do not train."""
ASK_SAMPLES = "fedpace-samples"
"""With `ASK_NAME`: also send the number of samples."""
ASK_LABELS = "fedpace-labels"
"""With `ASK_NAME`: also send the number of samples per class."""
ASK_MOMENT = "fedpace-moment"
"""In a train message: also send a feature moment."""
ASK_TARGETS = "fedpace-targets"
"""With `ASK_MOMENT`: send the joint moment of features and targets."""
ASK_GRADIENT = "fedpace-gradient"
"""In a train message: send only the sketch of one step from this model, not a trained model."""
SKETCH_WIDTH = "fedpace-sketch-width"
SKETCH_SEED = "fedpace-sketch-seed"
"""With `ASK_GRADIENT`: width and seed of the sketch. The seed is text, because it may exceed Flower's integers."""


WORK = "work"
"""In a train message: how much to train, as a multiple of the usual local training."""
LOCAL_STEPS = "local-steps"
"""In a train message: the number of local steps to make, if the server knows the usual one. In the metrics of a reply:
the number of local steps that were made."""


def asked(message: Message, key: str) -> bool:
    """Return whether the server set `key` in any config of the message."""
    return any(bool(config.get(key, False)) for config in message.content.config_records.values())


def config_value(message: Message, key: str) -> Any:
    """Return the server's value for `key`; None if there is none."""
    return next((config[key] for config in message.content.config_records.values() if key in config), None)


def local_steps(message: Message, usual: int) -> int:
    """Return how many local steps to make for a train message; for clients, if the scheme sets work.

    Put the result into the metrics of the reply as `local-steps`, for server rules that normalise by it (FedNova).

    Args:
        message: the train message.
        usual: the client's usual number of local steps, such as epochs times batches per epoch.
    """
    whole(usual, 1, "the usual number of local steps")
    if (told := config_value(message, LOCAL_STEPS)) is not None:
        return max(1, int(told))
    return steps_of_work(config_value(message, WORK), usual)


def record(arrays: Arrays) -> ArrayRecord:
    """Convert a model to Flower's ArrayRecord."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def unpacked(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Convert Flower's ArrayRecord to NumPy arrays."""
    return {key: array.numpy() for key, array in arrays.items()}


def arrays_of(message: Message) -> dict[str, NDArray[Any]]:
    """Return the model in a message, as NumPy arrays."""
    return unpacked(next(iter(message.content.array_records.values()), ArrayRecord()))


def reported_seconds(reply: Message) -> float:
    """Return the seconds that `report_mod` put into a reply; NaN for an error or for a client without the mod."""
    note = "" if reply.has_error() else note_of(reply)
    return math.nan if isinstance(note, str) else note.seconds


def note_of(reply: Message) -> Note | str:
    """Return the mod's note in a reply, or a text that says why it is invalid; an empty Note without the mod."""
    found = parse(lambda: Raw(reply.content.config_records.get(RECORD, {})))
    return found if isinstance(found, str) else found.note
