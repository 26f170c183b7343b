"""`released` prepares a simulated client's moment for sending: it cuts the rank and adds differential privacy."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.rng import stream
from fedpace.moments.factor import compress
from fedpace.moments.private import private_moment
from fedpace.sim.training import Training


def released(rows: FloatArray, training: Training, model: NDArray[np.generic], client: int, *, seed: int) -> FloatArray:
    """Return the factor of the moment that a client sends, private if `training.moment_epsilon` is set.

    The noise is keyed by the model. A client that is asked twice about the same model sends the same answer, which
    costs no privacy budget. Each new model is a new release.
    """
    rank = training.moment_rank or None
    if not training.moment_epsilon:
        return compress(rows / np.sqrt(len(rows)), rank or rows.shape[1], samples=len(rows)).factor
    name = int.from_bytes(hashlib.sha256(np.ascontiguousarray(model).tobytes()).digest()[:6], "big")
    return private_moment(
        rows,
        epsilon=training.moment_epsilon,
        delta=training.moment_delta,
        clip=training.moment_clip,
        seed=int(stream(seed, "release", client, name).integers(2**62)),
        max_rank=rank,
    ).factor
