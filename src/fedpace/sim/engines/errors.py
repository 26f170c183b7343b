"""Errors of engines."""

from __future__ import annotations

from fedpace._base.errors import FedpaceError


class WorkerLostError(FedpaceError, RuntimeError):
    """Several workers in a row died while computing the same task."""
