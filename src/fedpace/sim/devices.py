"""Where torch trains: `resolve` turns the option `device` into a torch device, and `autocast` is mixed precision.

Only models, their gradients and the clients' data are on the device. The shared model, the server step and everything
that is saved stay in main memory, as NumPy or torch vectors on the CPU.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fedpace._base.errors import InputError

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
