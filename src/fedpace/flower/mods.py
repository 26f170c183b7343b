"""`report_mod`, the Flower mod of the clients: it adds the training time, the client's name and a moment to replies.

Put it first in `mods`. Then its time includes the work of the other mods, and clipping mods never see its questions.

A Flower mod has no access to the model, because the client's train function creates it. So `last_layer_input` sets a
global torch hook that runs before every module's forward pass. The first module with a submodule of the wanted name is
the model. The input of that submodule in the first forward pass is one batch of features at the received model. The
targets of this batch are the second argument of the next call of a loss function.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, at_least
from fedpace._base.errors import FedpaceError, InputError, MissingExtraError
from fedpace.flower.wire import (
    ASK_GRADIENT,
    ASK_LABELS,
    ASK_MOMENT,
    ASK_NAME,
    ASK_SAMPLES,
    ASK_TARGETS,
    PARCEL,
    RECORD,
    SEALED,
    SKETCH_SEED,
    SKETCH_WIDTH,
    arrays_of,
    asked,
    config_value,
)
from fedpace.hosting.aggregator import PrivateClient
from fedpace.hosting.replies import (
    LOSS_KEYS,
    Privacy,
    UpdateSketch,
    flat,
    is_buffer,
    moment_rows,
    pack_labels,
    pack_update,
    packed_moment,
    read_model,
)

LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
"""Loss functions of torch.nn.functional with arguments (outputs, targets); torch's loss modules call them too."""


@dataclass(eq=False)
class Captured:
    """Features and targets captured in the first forward pass."""

    name: str
    rows: FloatArray | None = None
    """(n, d) features, with a 1 appended if the layer has a bias."""
    targets: FloatArray | None = None
    """(n, c) one-hot labels or regression targets; None if no loss function was called."""
    model_part: Any = None

    def features(self) -> FloatArray:
        """Return the rows, or raise an error that says why there are none."""
        if self.rows is not None:
            return self.rows
        if self.model_part is None:
            raise InputError(
                f"no torch model with a module {self.name!r} was used in training: give report_mod the name that "
                "named_modules() of your model shows for its last layer"
            )
        raise InputError(f"the module {self.name!r} was not called with a tensor in training, so it has no features")


@contextmanager
def last_layer_input(name: str, *, targets: bool = False) -> Iterator[Captured]:
    """Capture the first input of module `name` of the torch model that runs inside the block, and its targets."""
    try:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook
    except ModuleNotFoundError as cause:
        raise MissingExtraError(f"report_mod(module={name!r})", "sim", "torch") from cause
    found = Captured(name)
    searched: set[int] = set()

    def before(module: Any, inputs: Any) -> None:
        if found.rows is not None:
            return
        if found.model_part is None and id(module) not in searched:
            searched.add(id(module))  # search each module once: with a wrong name, every forward pass gets here
            found.model_part = dict(module.named_modules()).get(name)
        if module is not found.model_part or not inputs or not isinstance(inputs[0], torch.Tensor):
            return
        batch = inputs[0].detach().to("cpu", torch.float64).numpy()
        rows = batch.reshape(-1, batch.shape[-1])
        if getattr(module, "bias", None) is not None:
            rows = np.hstack([rows, np.ones((len(rows), 1))])
        found.rows = rows

    with ExitStack() as stack:
        stack.callback(register_module_forward_pre_hook(before).remove)
        if targets:
            stack.enter_context(_watching_losses(found))
        yield found


def _watching_losses(found: Captured) -> Any:
    """Return a context manager in which torch reports every function call, to capture the targets of a loss."""
    import torch
    from torch.overrides import TorchFunctionMode

    losses = {getattr(torch.nn.functional, loss) for loss in LOSSES}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if found.targets is None and found.rows is not None and func in losses:
                given = dict(zip(("input", "target"), args, strict=False)) | (kwargs or {})
                found.targets = _columns(given.get("input"), given.get("target"), len(found.rows))
            return func(*args, **(kwargs or {}))

    return Watch()


def _columns(outputs: Any, target: Any, rows: int) -> FloatArray | None:
    """Return targets with one row per row of features: classes as one-hot rows, other targets unchanged."""
    import torch

    if not isinstance(outputs, torch.Tensor) or not isinstance(target, torch.Tensor):
        return None
    classes = not target.is_floating_point() and outputs.ndim >= 2 and target.ndim == outputs.ndim - 1
    if classes:
        # Images and sequences have the classes on the second axis; features have one row per pixel or time step.
        values = target.detach().to("cpu").reshape(-1).numpy()
        width = int(outputs.shape[1])
        if len(values) != rows or not ((values >= 0) & (values < width)).all():
            return None  # a padding index, or a loss of another quantity
        return np.asarray(np.eye(width)[values], dtype=np.float64)
    values = target.detach().to("cpu", torch.float64).numpy()
    values = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    return np.asarray(values, dtype=np.float64) if len(values) == rows else None


Handler = Callable[[Message, Context], Message]
Features = Callable[[Message, Context], ArrayLike | tuple[ArrayLike, ArrayLike]]
Gradient = Callable[[Message, Context], Mapping[str, ArrayLike]]
Labels = Callable[[Context], ArrayLike]
Samples = Callable[[Context], float]
Delay = Callable[[Message, Context, float], float]

log = logging.getLogger("flwr")


def report_mod(
    *,
    module: str = "",
    features: Features | None = None,
    gradient: Gradient | None = None,
    labels: Labels | None = None,
    samples: Samples | None = None,
    max_rank: int = 16,
    privacy: Privacy | None = None,
    delay: Delay | None = None,
    transfer: bool = True,
) -> Callable[[Message, Context, Handler], Message]:
    """Return a Flower mod that reports training seconds and the client's name, and other facts if the server asks.

    Args:
        module: name of the torch model's last layer, as in `named_modules()`. The layer's input in the first forward
            pass of training is the batch of features, and the targets of the first loss are the batch's labels.
        features: for models outside torch, or for more than one batch: a function of (message, context) that returns
            (n, d) rows of features at the received model, with a 1 appended if the last layer has a bias. It may also
            return a pair of these rows and (n, c) targets, one-hot for classes. Not with `module`.
        gradient: for schemes that probe gradients before they select: a function of (message, context) that returns
            one step from the received model, name -> array, equal to minus the learning rate times the gradient. None
            = the client trains as usual and its update is the answer: correct, but as slow as a round.
        labels: a function of the context that returns the number of samples of each class.
        samples: a function of the context that returns the number of samples; None = the sum of `labels`.
        max_rank: leading directions of the moment that are sent.
        privacy: options of differential privacy; None = the exact moment is sent. See docs/flower.md for what that
            reveals.
        delay: a function of (message, context, measured seconds) that returns the seconds to report instead, for
            example from a delay model, to study slow clients on one machine.
        transfer: whether to add the time between the creation of the message at the server and its arrival, by the
            clocks of the two machines. Turn it off in simulations, where this time is mostly queueing.
    """
    if module and features is not None:
        raise InputError("report_mod was given both module and features: the moment comes from one of them")
    at_least(max_rank, 1, "max_rank of report_mod")
    if privacy is not None and not module and features is None:
        raise InputError("report_mod was given privacy, but neither module nor features: there is nothing to protect")

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        if asked(message, ASK_NAME):
            return _note(message, {"name": stable_name(context)} | _about(message, context, labels, samples))
        if asked(message, ASK_GRADIENT):
            return _gradient(message, context, gradient, call_next)
        arrival = max(0.0, time.time() - message.metadata.created_at) if transfer else 0.0
        budget = privacy is None or _spent(context) < privacy.releases
        wanted = asked(message, ASK_MOMENT) and budget
        targets = wanted and asked(message, ASK_TARGETS)
        # Compute rows before training: they belong to the received model, and do not count as training time.
        rows = features(message, context) if wanted and features is not None else None
        start = time.perf_counter()
        with last_layer_input(module, targets=targets) if wanted and module else nullcontext() as captured:
            reply = call_next(message, context)
        compute = time.perf_counter() - start
        if reply.has_error():
            return reply
        seconds = compute + arrival
        note: dict[str, Any] = {
            "name": stable_name(context),
            "compute": compute,
            "seconds": seconds if delay is None else float(delay(message, context, seconds)),
        }
        if wanted and (rows is not None or captured is not None):
            note |= _moment(rows, captured, targets, max_rank, privacy, context)
        reply.content[RECORD] = ConfigRecord(note)
        return reply

    return mod


def sealed_mod(
    keys: str | Path, *, name: str = "", loss_key: str = ""
) -> Callable[[Message, Context, Handler], Message]:
    """Return a Flower mod that seals the client's update for a trusted aggregator: the server cannot open it.

    Put it after `report_mod`. It sends no metrics: the loss is sealed with the update.

    Args:
        keys: the file `client.json` that `fedpace aggregator` wrote.
        name: the node's name, if it was registered with one; else it is the name that `report_mod` tells.
        loss_key: name of the metric with the training loss; empty = the names in `LOSS_KEYS`.
    """

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        parcel = config_value(message, PARCEL)
        if not isinstance(parcel, bytes):
            raise InputError("the server did not ask for a sealed update, and no other leaves this client")
        received = arrays_of(message)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        trained = read_model(arrays_of(reply), received)
        learned = [key for key, array in received.items() if not is_buffer(key, array)]
        others = [key for key in received if key not in learned]
        metrics: Any = next(iter(reply.content.metric_records.values()), {})
        loss = next((metrics[key] for key in ((loss_key,) if loss_key else LOSS_KEYS) if key in metrics), math.nan)
        memory: Any = context.state.config_records.get(SEALED, {})
        own = name or stable_name(context) or str(context.node_id)
        client = PrivateClient(keys, own, memory.get("memory", b""))
        update = flat(trained, learned) - flat(received, learned)
        sealed = client.answer(parcel, update, loss=float(loss), buffers=flat(trained, others) if others else None)
        context.state[SEALED] = ConfigRecord({"memory": client.state})
        return Message(RecordDict({SEALED: ConfigRecord({"update": sealed})}), reply_to=message)

    return mod


def stable_name(context: Context) -> str:
    """Return the node's name from its config: `name`, else `partition-id`, else an empty string."""
    if name := context.node_config.get("name"):
        return str(name)
    partition = context.node_config.get("partition-id")
    return "" if partition is None else f"partition-{partition}"


def _note(message: Message, entries: Mapping[str, Any]) -> Message:
    """Return a reply with `entries` in fedpace's record, without training."""
    return Message(RecordDict({RECORD: ConfigRecord(dict(entries))}), reply_to=message)


def _about(message: Message, context: Context, labels: Labels | None, samples: Samples | None) -> dict[str, Any]:
    """Return the numbers of samples and labels, which leave the client only if the server asks for them."""
    entries: dict[str, Any] = {}
    if labels is not None and asked(message, ASK_LABELS):
        entries |= pack_labels(labels(context))
    if asked(message, ASK_SAMPLES):
        if samples is not None:
            entries["samples"] = float(samples(context))
        elif labels is not None:
            entries["samples"] = pack_labels(labels(context))["samples"]
    return entries


def _gradient(message: Message, context: Context, gradient: Gradient | None, call_next: Handler) -> Message:
    """Answer with the sketch of one step from the received model; only the sketch leaves the client."""
    current = arrays_of(message)
    width, seed = int(config_value(message, SKETCH_WIDTH) or 0), int(config_value(message, SKETCH_SEED) or 0)
    sketch = UpdateSketch(current, width, seed=seed)
    if gradient is not None:
        step = sketch.of_step({key: np.asarray(array) for key, array in gradient(message, context).items()})
    else:
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        step = sketch(arrays_of(reply), current)
    if step is None:
        raise InputError(f"the step should be finite, with the arrays {sorted(current)} in the shapes of the model's")
    return _note(message, {"name": stable_name(context)} | pack_update(step))


def _moment(
    rows: Any, captured: Captured | None, targets: bool, max_rank: int, privacy: Privacy | None, context: Context
) -> dict[str, Any]:
    """Return the moment as record entries; if it cannot be measured, log why and return nothing."""
    try:
        given = rows if isinstance(rows, tuple) else (rows, None)
        batch, beside = given if captured is None else (captured.features(), captured.targets)
        if targets and beside is None:
            log.warning(
                "fedpace: the scheme uses targets in the moments, but none were seen beside the features: features "
                "alone are sent. Call one of torch.nn.functional's losses in training, or return (rows, targets) "
                "from `features`"
            )
        made = moment_rows(batch, beside if targets else None)
        if privacy is not None:
            # Count the release before drawing the noise: a crash in between may waste a release, but never repeats one.
            context.state[RECORD] = ConfigRecord({"releases": _spent(context) + 1})
        return packed_moment(made, max_rank, privacy)
    except FedpaceError as problem:
        log.warning("fedpace: no feature moment is sent: %s", problem)
        return {}


def _spent(context: Context) -> int:
    record: Any = context.state.config_records.get(RECORD, {})
    return int(record.get("releases", 0))
