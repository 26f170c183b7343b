"""The arrays that an inner strategy keeps for itself, such as momenta: to be saved and put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedpace.core.errors import InputError


def chain(inner: Any) -> Iterator[Any]:
    """Yield the strategy, and what it wraps: Flower's wrappers call that `strategy`."""
    while inner is not None:
        yield inner
        inner = getattr(inner, "strategy", None)


def own_arrays(inner: Strategy) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return attributes that are a dict or a list of arrays, and the layout to put them back by."""
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
    """Give the strategy the arrays that were saved."""
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
