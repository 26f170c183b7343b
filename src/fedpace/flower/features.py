"""The input of a torch model's last layer, without touching the client's training code.

A mod does not see the model: it is made inside the client's train function. torch lets one hook precede every module's
forward pass; the first module that has a submodule of the wanted name is the model, and what that submodule is called
with in the first forward pass is one batch of features at the model that the client received.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace.core.checks import FloatArray
from fedpace.core.errors import InputError, MissingExtraError


@dataclass(eq=False)
class Captured:
    """Filled in the first forward pass."""

    name: str
    rows: FloatArray | None = None
    """(n, d) features, with a 1 behind them if the layer has a bias."""
    target: Any = None

    def features(self) -> FloatArray:
        """Return the rows, or say why there are none."""
        if self.rows is not None:
            return self.rows
        if self.target is None:
            raise InputError(
                f"no torch model with a module {self.name!r} was used in training: give report_mod the name that "
                "named_modules() of your model shows for its last layer"
            )
        raise InputError(f"the module {self.name!r} was not called with a tensor in training, so it has no features")


@contextmanager
def last_layer_input(name: str) -> Iterator[Captured]:
    """Catch the first input of the module `name` of whatever torch model runs inside the block."""
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
        if found.target is None and id(module) not in searched:
            searched.add(id(module))  # once each: with a wrong name, every forward pass comes by here
            found.target = dict(module.named_modules()).get(name)
        if module is not found.target or not inputs or not isinstance(inputs[0], torch.Tensor):
            return
        batch = inputs[0].detach().to("cpu", torch.float64).numpy()
        rows = batch.reshape(-1, batch.shape[-1])
        if getattr(module, "bias", None) is not None:
            rows = np.hstack([rows, np.ones((len(rows), 1))])
        found.rows = rows

    handle = register_module_forward_pre_hook(before)
    try:
        yield found
    finally:
        handle.remove()
