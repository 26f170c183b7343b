"""`check_model` checks that a model meets the simulator's assumptions.

check_model(MyModel(), input_shape=(1, 28, 28), outputs=10)       # a model of fedpace, or any torch module
"""

from __future__ import annotations

from typing import Any

import torch

from fedpace.models._modules import FeatureModel, WrappedModel, wrap
from fedpace.sim.flat import FlatModel
from fedpace.testing.selector_checks import check_options, rule

ROWS = 6
TOLERANCE = 1e-4


def check_model(model: Any, *, input_shape: tuple[int, ...], outputs: int, head: str | None = None) -> None:
    """Raise a ContractError if a model breaks a rule of the contract.

    `model` is a model of fedpace, a torch module, or a function that returns a module.
    """
    own = isinstance(model, torch.nn.Module) or not hasattr(model, "build") or isinstance(model, type)
    config: Any = wrap(model, input_shape, head=head) if own else model
    name = config.module if own else getattr(config, "name", type(config).__name__)
    if not own:
        check_options(config)
    before = torch.get_rng_state()
    one, two = (_build(config, input_shape, outputs, seed=5) for _ in range(2))
    rule(torch.equal(before, torch.get_rng_state()), f"{name} draws its weights from torch's global generator")
    flats = [FlatModel(module, classification=outputs > 1) for module in (one, two)]
    rule(torch.equal(*(flat.vector() for flat in flats)), f"{name}: one generator gave two models")
    flat = flats[0]
    inputs = _inputs(input_shape, tokens=own and config.tokens)
    with torch.no_grad():
        first, features = one(inputs), one.features(inputs)
        rule(
            tuple(first.shape) == (ROWS, outputs),
            f"{name} returned {tuple(first.shape)} for {ROWS} samples, expected ({ROWS}, {outputs})",
        )
        rule(
            features.ndim == 2 and len(features) == ROWS,
            f"{name}: the features must be (n, d), but their shape is {tuple(features.shape)}",
        )
        if not isinstance(one, WrappedModel):
            rule(_near(one.head(features), first), f"{name}: the head on the features is not the forward pass")
        rule(
            torch.equal(one(inputs), first),
            f"{name} gives two answers to one input when it is judged: pass training=self.training to F.dropout",
        )
        halves = torch.cat([one(half) for half in (inputs[: ROWS // 2], inputs[ROWS // 2 :])])
        rule(
            _near(halves, first),
            f"{name} answers differently in another batch when it is judged: an answer must not depend on the batch",
        )
    _check_training(flat, inputs, outputs, str(name))


def _check_training(flat: FlatModel, inputs: torch.Tensor, outputs: int, name: str) -> None:
    start = flat.vector()
    targets = torch.arange(ROWS) % outputs if flat.classification else torch.arange(ROWS, dtype=torch.float32)
    trained = []
    for _ in range(2):
        flat.load(start)
        flat.gradients.zero_()
        with flat.training(7):
            flat.loss(inputs, targets).backward()  # type: ignore[no-untyped-call]
        flat.parameters.sub_(flat.gradients, alpha=0.1)
        trained.append(flat.vector())
    rule(bool(flat.gradients.isfinite().all()), f"{name}: the gradient is not finite")
    rule(bool(flat.gradients.any()), f"{name}: nothing has a gradient; is the forward pass detached?")
    rule(torch.equal(*trained), f"{name} trained differently twice: it remembers something that is no buffer")
    flat.load(start)
    rule(torch.equal(flat.vector(), start), f"{name} cannot be put back into an earlier state")


def _build(config: Any, input_shape: tuple[int, ...], outputs: int, *, seed: int) -> FeatureModel:
    module = config.build(input_shape, outputs, generator=torch.Generator().manual_seed(seed))
    rule(isinstance(module, FeatureModel), f"{config.name}: build(...) must return a FeatureModel")
    found: FeatureModel = module.eval()
    return found


def _inputs(shape: tuple[int, ...], *, tokens: bool) -> torch.Tensor:
    if tokens:
        return torch.zeros((ROWS, *shape), dtype=torch.long)
    return torch.randn((ROWS, *shape), generator=torch.Generator().manual_seed(11))


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE))
