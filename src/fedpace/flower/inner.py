"""Helpers for the Flower strategy that `PacedStrategy` wraps: check it, read its attributes, save and restore it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedpace._base.errors import InputError

log = logging.getLogger("flwr")

IGNORE_WEIGHTS = ("Krum", "FedMedian", "FedTrimmedAvg", "Bulyan", "QFedAvg")
"""Flower strategies that ignore the weight key: fedpace selects their nodes, but cannot weight them."""
OWN_MOMENTUM = ("FedOpt", "FedAvgM")
"""Flower's server optimisers with momentum: a second momentum by fedpace would overshoot."""


def chain(inner: Any) -> Iterator[Any]:
    """Yield the strategy and the strategies that it wraps (attribute `strategy` of Flower's wrappers)."""
    while inner is not None:
        yield inner
        inner = getattr(inner, "strategy", None)


def attribute(inner: Strategy, name: str, default: Any) -> Any:
    """Return an attribute of the strategy or of one that it wraps; `default` if none has it."""
    return next((getattr(strategy, name) for strategy in chain(inner) if hasattr(strategy, name)), default)


def has_momentum(inner: Strategy) -> bool:
    """Return whether the strategy, or one that it wraps, has its own momentum."""
    return any(kind.__name__ in OWN_MOMENTUM for strategy in chain(inner) for kind in type(strategy).__mro__)


def check_inner(inner: Strategy) -> None:
    """Raise if the strategy cannot be wrapped; log a warning if it works only in part."""
    if not isinstance(inner, Strategy):
        raise InputError(
            f"PacedStrategy wraps a strategy of flwr.serverapp.strategy, but a {type(inner).__name__} came: "
            "strategies of the older flwr.server API must be moved to the Message API first"
        )
    fraction = attribute(inner, "fraction_train", 1.0)
    if fraction != 1.0:
        raise InputError(
            f"the inner strategy has fraction_train = {fraction}, so it would draw nodes at random before fedpace can "
            "choose: leave it at 1.0, and give the scheme the cohort's size where it has one"
        )
    kinds = [kind.__name__ for strategy in chain(inner) for kind in type(strategy).__mro__]
    if ignoring := [name for name in IGNORE_WEIGHTS if name in kinds]:
        log.warning("fedpace: %s ignores weights: fedpace chooses its nodes, but cannot weigh them", ignoring[0])
    elif "MultiKrum" in kinds:
        log.warning("fedpace: MultiKrum weighs only the models that it keeps, and keeps them whatever they weigh")
    if any(name.startswith("DifferentialPrivacy") for name in kinds):
        log.warning(
            "fedpace: Flower's noise is made for num_sampled_clients equal weights: where a cohort is smaller or "
            "weighs one client more than 1 / num_sampled_clients, the guarantee is weaker than the multiplier says"
        )


def own_arrays(inner: Strategy) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return the strategy's state (attributes that are dicts or lists of arrays) and the layout for `put_back`."""
    arrays: dict[str, NDArray[Any]] = {}
    layout: list[dict[str, Any]] = []
    for depth, strategy in enumerate(chain(inner)):
        for name, value in sorted(vars(strategy).items()):
            keys = list(value) if isinstance(value, dict) else None
            parts = list(value.values()) if isinstance(value, dict) else value
            if not (isinstance(parts, list) and parts and all(isinstance(part, np.ndarray) for part in parts)):
                continue
            start = len(arrays)
            arrays |= {str(start + i): part for i, part in enumerate(parts)}
            layout.append({"depth": depth, "name": name, "keys": keys, "start": start, "count": len(parts)})
    return arrays, layout


def put_back(inner: Strategy, layout: list[dict[str, Any]], stored: Mapping[str, NDArray[Any]]) -> None:
    """Restore the arrays that `own_arrays` returned."""
    strategies = list(chain(inner))
    try:
        for item in layout:
            if item["depth"] >= len(strategies) or not hasattr(strategies[item["depth"]], item["name"]):
                raise InputError(
                    f"the saved state has {item['name']!r} of another strategy: wrap the same one, or start anew"
                )
            parts = [stored[str(item["start"] + i)] for i in range(item["count"])]
            value = parts if item["keys"] is None else dict(zip(item["keys"], parts, strict=True))
            setattr(strategies[item["depth"]], item["name"], value)
    except (KeyError, TypeError) as cause:
        raise InputError(f"the saved state of the inner strategy is damaged: {cause!r}") from cause
