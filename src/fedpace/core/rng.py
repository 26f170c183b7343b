"""Every random number of fedpace comes from here.

A generator is a pure function of a seed and a key, so that a stream never depends on who drew before it: two
selectors under one seed meet the same delays, the same data and the same initial model, and a resumed run meets
what the uninterrupted one would have met. There is no global state to reset.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedpace.core.errors import InputError

Key = str | int
"""One part of a stream's name: `stream(seed, "delay", step)`."""


def seed_sequence(seed: int, *key: Key) -> np.random.SeedSequence:
    """Return the seed sequence named by `seed` and `key`.

    The parts are hashed with their types and lengths, so that `("a", 12)` and `("a1", 2)` name different streams
    and adding a new kind of key somewhere never shifts an existing stream.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"a seed is a non-negative integer, but {seed!r} came")
    digest = hashlib.sha256()
    for part in (int(seed), *key):
        if isinstance(part, bool) or not isinstance(part, str | int | np.integer):
            raise InputError(f"a stream key is made of strings and integers, but {part!r} came")
        text = part if isinstance(part, str) else str(int(part))
        encoded = text.encode()
        digest.update(f"{'s' if isinstance(part, str) else 'i'}{len(encoded)}:".encode())
        digest.update(encoded)
    return np.random.SeedSequence(int.from_bytes(digest.digest(), "little"))


def stream(seed: int, *key: Key) -> np.random.Generator:
    """Return the random generator named by `seed` and `key`.

    >>> a, b = stream(7, "delay", 3), stream(7, "delay", 3)
    >>> bool(a.random() == b.random())
    True
    """
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, *key)))
