"""What a scheme wants to hear before it chooses, as Flower messages.

Losses are asked for by evaluate messages: at the current model, on the client's evaluation data. Steps are asked for by
train messages, which the mod answers with a sketch. A client without the mod trains and sends its model, as it always
does, and the sketch is made from that: slower, and the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, MessageType, RecordDict

from fedpace.flower.replies import Reply
from fedpace.flower.wire import ASK_GRADIENT, SKETCH_SEED, SKETCH_WIDTH, asking
from fedpace.hosting.host import Host
from fedpace.hosting.sketch import Arrays


def loss_probe(message: Message) -> Message:
    """Return the evaluate message that a train message becomes."""
    content = RecordDict(dict(message.content.items()))
    return Message(content, dst_node_id=message.metadata.dst_node_id, message_type=MessageType.EVALUATE)


def step_probe(message: Message, host: Host) -> Message:
    """Return the train message that asks for the sketch of a step only."""
    copy = Message(message.content, dst_node_id=message.metadata.dst_node_id, message_type=MessageType.TRAIN)
    projection = {SKETCH_WIDTH: host.memory.width, SKETCH_SEED: str(host.session.settings.seed)}
    return asking(copy, **{ASK_GRADIENT: True}, **projection)


def losses(answers: Iterable[Reply]) -> dict[str, Any]:
    """Return who told a loss."""
    return {answer.name: answer.loss for answer in answers if not math.isnan(answer.loss)}


def steps(answers: Iterable[Reply], host: Host, current: Arrays) -> dict[str, Any]:
    """Return the sketches, by name; who sent neither one nor a model that fits is not heard."""
    sketch = host.memory.sketch(current, host.session.settings.seed)
    heard = {}
    for answer in answers:
        step = answer.note.update
        if step is None:
            step = sketch(answer.trained(), current)
        if step is not None and step.size == sketch.width:
            heard[answer.name] = step
    return heard
