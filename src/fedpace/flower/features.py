"""`last_layer_input` captures the input of a torch model's last layer and its targets, without changes to client code.

A Flower mod has no access to the model, because the client's train function creates it. So a global torch hook runs
before every module's forward pass. The first module with a submodule of the wanted name is the model. The input of that
submodule in the first forward pass is one batch of features at the received model. The targets of this batch are the
second argument of the next call of a loss function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError, MissingExtraError

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
