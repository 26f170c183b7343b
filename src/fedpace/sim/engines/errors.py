"""What can go wrong where the clients' work is done."""

from __future__ import annotations

from fedpace._base.errors import FedpaceError


class WorkerLostError(FedpaceError, RuntimeError):
    """Workers died over a task, again and again."""
