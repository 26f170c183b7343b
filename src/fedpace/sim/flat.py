"""`FlatModel`: a torch module as one flat vector, with its trainable parameters first and its buffers after them.

With flat vectors, aggregation, momentum and the SGD step are single operations instead of loops over layers, and a
model is sent as a plain array.

Server steps do not apply to buffers such as the running statistics of a batch norm: an extrapolated variance could fall
below 0. Buffers are sent with the model, and the server takes the weighted mean of the clients' buffers, with integers
rounded (`mean_buffers`). `SharedModel` treats integers in the same way. Four kinds of values are not sent and stay as
they were built: buffers outside `state_dict`, complex buffers, integers too large for float32, and parameters without
a gradient.

Only models, their gradients and the clients' data are on the torch device (`resolve`, `autocast`). The shared model,
the server step and everything that is saved stay in main memory.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedpace._base.checks import shortened
from fedpace._base.errors import InputError
from fedpace.data.federated import FederatedData
from fedpace.models.contract import FeatureModel
from fedpace.models.custom import Functions, named

log = logging.getLogger(__name__)

LOSS_SCALE = 2.0**12
"""Factor of the loss in float16, whose small gradients would be 0; it is halved when gradients overflow."""


def resolve(device: str | None, *, worker: int = 0) -> torch.device:
    """Return the torch device for the option `device`; raise InputError if this machine does not have it.

    Args:
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`; None = `cpu`.
        worker: number of the worker process; workers share several GPUs in turn.
    """
    wanted = device or "cpu"
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        log.info("fedpace: device auto is %s here", wanted)
    kind, _, number = wanted.partition(":")
    if kind == "cuda":
        count = gpus()
        if not count:
            raise InputError(
                f"device = {device!r} needs a GPU and a torch that was built for CUDA, and this machine or this torch "
                f"({torch.__version__}) has none: take device 'cpu' or 'auto'"
            )
        if number and int(number) >= count:
            raise InputError(f"device = {device!r}, but the GPUs of this machine are cuda:0 to cuda:{count - 1}")
        return torch.device("cuda", int(number) if number else worker % count)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device = {device!r} needs an Apple GPU, and this machine has none: take 'cpu' or 'auto'")
    return torch.device(wanted)


def gpus() -> int:
    """Return the number of CUDA devices that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def described(device: torch.device, precision: str | None = None) -> str:
    """Return the name of a device for records, such as `cuda:0 (NVIDIA A100), bfloat16`."""
    name = str(device)
    if device.type == "cuda":
        name += f" ({torch.cuda.get_device_name(device)})"
    return name if precision in (None, "float32") else f"{name}, {precision}"


def check_precision(precision: str | None, device: torch.device) -> None:
    """Raise InputError if mixed precision is asked for on a CPU."""
    if precision not in (None, "float32") and device.type == "cpu":
        raise InputError(
            f"precision = {precision!r} is for GPUs, but the device is the CPU, where it is slow or on some processors "
            "not implemented: take precision 'float32', or another device"
        )


def autocast(precision: str | None, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which a model computes with this precision; weights and sums stay in float32."""
    if precision in (None, "float32"):
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, str(precision)))


def seed_noise(device: torch.device, seed: int) -> None:
    """Seed the generators of dropout: that of the CPU, and that of the device."""
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).manual_seed(seed)


MAX_EXACT_INTEGER = 2**24
"""float32 represents every integer up to this one exactly."""


class FlatModel:
    """A torch module whose trained parameters and their gradients are views of the flat `parameters` and `gradients`.

    The module is in evaluation mode, except inside `training`.
    """

    def __init__(
        self,
        module: FeatureModel,
        *,
        classification: bool,
        device: torch.device | None = None,
        precision: str | None = None,
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.precision = precision
        self.module = module = module.to(self.device)
        self.classification = classification
        self.functions: Functions = module.functions or Functions()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise InputError("the model has no parameter that needs a gradient: there is nothing to train")
        self.parameters = torch.cat([parameter.detach().reshape(-1) for parameter in trained])
        self.gradients = torch.zeros_like(self.parameters)
        self._trained = trained
        start = 0
        for parameter in trained:
            end = start + parameter.numel()
            parameter.data = self.parameters[start:end].view(parameter.shape)
            parameter.grad = self.gradients[start:end].view(parameter.shape)
            start = end
        self._sent_buffers = [
            (owner, name)
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
            if _is_sent(owner, name, buffer)
        ]
        self._local_buffers = [
            (owner, name, buffer.clone())
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
            if not _is_sent(owner, name, buffer)
        ]
        self.integer_buffers = torch.cat(
            [torch.zeros(0, dtype=torch.bool)]
            + [
                torch.full((buffer.numel(),), not buffer.is_floating_point())
                for buffer in (owner.get_buffer(name) for owner, name in self._sent_buffers)
            ]
        )
        """Mask of the buffer entries that are integers."""

        self.needs_pairs = any(isinstance(part, _BatchNorm) for part in module.modules())
        """Whether the module has a batch norm, which cannot train on a single sample."""
        module.eval()

    def check_batches(self, data: FederatedData, batch: int) -> None:
        """Raise if a client would train a batch norm on one sample and the module fails on it.

        The module is tried on one sample, because a batch norm over the many pixels of an image does not fail.
        """
        alone = [client for client, held in enumerate(data.train) if len(held) == 1 or batch == 1]
        if not self.needs_pairs or not alone:
            return
        sample = torch.from_numpy(data.train[alone[0]].inputs[:1]).to(self.device)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                copy.deepcopy(self.module).train()(sample)
        except ValueError as cause:
            who = "batches of one sample" if batch == 1 else f"client {alone[0]} holds one sample"
            raise InputError(
                f"{who}, but the model has a batch norm, which needs two in a batch: "
                + ("raise batch" if batch == 1 else "leave such clients out")
                + ", or use another norm, such as nn.LayerNorm"
            ) from cause

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """Put the module into training mode inside the `with` block; `seed` seeds dropout."""
        forked = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices=forked, device_type=self.device.type if forked else "cuda"):
            seed_noise(self.device, seed)
            self.module.train()
            try:
                yield
            finally:
                self.module.eval()

    @property
    def trainable(self) -> int:
        """Number of trained entries of the vector; the others are buffers."""
        return self.parameters.numel()

    @property
    def bytes(self) -> int:
        """Size of a sent model in bytes."""
        return (self.trainable + self.integer_buffers.numel()) * self.parameters.element_size()

    def load(self, vector: torch.Tensor) -> None:
        """Load parameters and buffers from `vector`."""
        self.parameters.copy_(vector[: self.trainable])
        start = self.trainable
        for owner, name in self._sent_buffers:
            buffer = owner.get_buffer(name)
            end = start + buffer.numel()
            values = vector[start:end].view(buffer.shape)
            buffer.copy_(values if buffer.is_floating_point() else values.round())
            start = end
        for owner, name, built in self._local_buffers:
            setattr(owner, name, built.clone())

    def relink(self) -> None:
        """Make parameters and gradients views of the flat vectors again, after code that may have replaced them."""
        start = 0
        for parameter in self._trained:
            end = start + parameter.numel()
            view = self.parameters[start:end].view(parameter.shape)
            if parameter.data.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view
            parameter.grad = self.gradients[start:end].view(parameter.shape)
            start = end

    def vector(self) -> torch.Tensor:
        """Return a new vector of the module's parameters and buffers, in main memory."""
        if not self._sent_buffers:
            return self.parameters.clone() if self.device.type == "cpu" else self.parameters.cpu()
        parts = [self.parameters]
        for owner, name in self._sent_buffers:
            parts.append(owner.get_buffer(name).reshape(-1).to(self.parameters.dtype))
        found = torch.cat(parts).cpu()
        if found.numel() != self.trainable + self.integer_buffers.numel():
            raise InputError("a buffer of the model changed its size in training: it cannot be averaged over clients")
        return found

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean training loss on a batch."""
        return self.criterion(self.outputs(inputs), targets)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the module's outputs, in single precision."""
        with autocast(self.precision, self.device):
            found: torch.Tensor = self.module(inputs)
        return found if self.precision in (None, "float32") else found.float()

    def criterion(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean training loss of outputs: cross-entropy, or half the squared error as in the paper."""
        if self.functions.loss is not None:
            found = self.functions.loss(outputs, targets)
            if not isinstance(found, torch.Tensor) or found.ndim:
                raise InputError(
                    f"loss {named(self.functions.loss)} must return the mean loss as a tensor of one number, but "
                    f"{shortened(found)} came"
                )
            return found
        if self.classification:
            return functional.cross_entropy(outputs, targets)
        return 0.5 * functional.mse_loss(outputs.squeeze(1), targets)


def mean_buffers(
    before: torch.Tensor, whole: torch.Tensor, answers: Iterable[tuple[torch.Tensor, float]]
) -> torch.Tensor:
    """Return the weighted mean of the clients' buffers, integers rounded; `before` if no weight is positive."""
    total, weight = torch.zeros(before.shape, dtype=torch.float64), 0.0
    for buffers, own in answers:
        # Some importance weights are negative, and a negative weight could make a variance negative.
        total.add_(buffers, alpha=max(own, 0.0))
        weight += max(own, 0.0)
    if not weight:
        return before
    mean = total / weight
    return torch.where(whole, mean.round(), mean).to(before.dtype)


def _is_sent(owner: nn.Module, name: str, buffer: torch.Tensor) -> bool:
    if name in owner._non_persistent_buffers_set or buffer.is_complex():
        return False
    return buffer.is_floating_point() or buffer.numel() == 0 or int(buffer.long().abs().max()) <= MAX_EXACT_INTEGER
