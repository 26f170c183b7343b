"""Delays given as an array by the program: seconds per client, or per round and client."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from fedpace._base.checks import FloatArray, float_array
from fedpace._base.errors import InputError
from fedpace.core.types import DelayModel
from fedpace.delays.base import count_of
from fedpace.delays.trace import TraceModel


@dataclass(frozen=True)
class ArrayDelays:
    """Delays from an array; the fields describe the array. Created by `give_delays`."""

    name: ClassVar[str] = "own"

    clients: int
    rounds: int
    digest: str

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays; `clients` must match the array. After the last round, the delays repeat."""
        if count_of(clients) != self.clients:
            raise InputError(f"delays came for {self.clients} clients, but there are {clients}: give one per client")
        # The step before the first round belongs to the warm-up; after the roll, the first row is used in the first
        # round.
        seconds = np.roll(cast("FloatArray", self.__dict__["seconds"]), 1, axis=0)
        return TraceModel(seconds, np.ones(seconds.shape, dtype=np.bool_))


def give_delays(seconds: Any) -> ArrayDelays:
    """Return delays from an array of seconds, with shape (clients,) or (rounds, clients)."""
    try:
        axes = np.ndim(seconds)
    except ValueError as cause:  # rows of different lengths
        raise InputError(f"delays must be numbers, one per client, or rounds x clients: {cause}") from cause
    found = np.atleast_2d(float_array(seconds, "delays", ndim=axes, finite=False))
    if found.ndim != 2 or found.size == 0 or not (np.isfinite(found) & (found > 0)).all():
        raise InputError(
            f"delays must be positive seconds, one per client, or rounds x clients, but an array of shape "
            f"{np.shape(seconds)} came{'' if found.size == 0 else f' with values from {found.min()} to {found.max()}'}"
        )
    digest = hashlib.sha256(np.ascontiguousarray(found).data).hexdigest()[:16]
    delays = ArrayDelays(found.shape[1], found.shape[0], digest)
    delays.__dict__["seconds"] = found
    return delays
