"""Probes beyond the contract's plain ones."""

from __future__ import annotations

from dataclasses import dataclass

from fedpace.core.types import Probe


@dataclass(frozen=True, eq=False)
class BatchProbe(Probe):
    """A loss on a part of the data. A host that cannot cut its data may answer with the loss on all of it."""

    samples: int = 0
    """Drawn uniformly from the client's data; 0 or more than there are = all of them."""
