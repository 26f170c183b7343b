"""How a run ends."""

from __future__ import annotations


class TargetReachedError(Exception):
    """The target is reached. Flower's loop has no early stop, so the evaluation raises this."""
