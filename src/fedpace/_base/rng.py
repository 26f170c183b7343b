"""Random streams: all random numbers of fedpace come from generators made here.

A generator depends only on a seed and a key, and never on earlier draws. So two selectors with the same seed get the
same delays, data and initial model, and a resumed run draws the same numbers as an uninterrupted one. There is no
global state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from fedpace._base.errors import InputError

Key = str | int
"""One part of a stream's name: `stream(seed, "delay", step)`."""
WHOLE = (int, np.integer)


def seed_sequence(seed: int, *key: Key) -> np.random.SeedSequence:
    """Return the seed sequence named by `seed` and `key`.

    The parts are hashed with their types and lengths, so that `("a", 12)` and `("a1", 2)` name different streams
    and adding a new kind of key somewhere never shifts an existing stream.
    """
    return np.random.SeedSequence(int.from_bytes(hashlib.sha256(_name(seed, *key)).digest(), "little"))


def stream(seed: int, *key: Key) -> np.random.Generator:
    """Return the random generator named by `seed` and `key`.

    >>> a, b = stream(7, "delay", 3), stream(7, "delay", 3)
    >>> bool(a.random() == b.random())
    True
    """
    words = np.frombuffer(hashlib.sha256(_name(seed, *key)).digest(), dtype="<u4")
    # An array of words is much faster than an integer for NumPy. They differ only if the last word is 0.
    sequence = np.random.SeedSequence(words) if words[-1] else seed_sequence(seed, *key)
    return np.random.Generator(np.random.PCG64(sequence))


def streams(seed: int, *key: Key, last: Sequence[tuple[Key, ...]]) -> Iterator[np.random.Generator]:
    """Yield `stream(seed, *key, *parts)` for all `parts` in `last`: the same generators, eight times as fast.

    >>> bool(next(streams(7, "delay", last=[(3,)])).random() == stream(7, "delay", 3).random())
    True
    """
    if not last:
        return
    prefix = _name(seed, *key)
    digests = b"".join(hashlib.sha256(prefix + b"".join(map(_part, parts))).digest() for parts in last)
    for words in _seeded_states(np.frombuffer(digests, dtype="<u4").reshape(-1, 8)):
        yield np.random.Generator(np.random.PCG64(_Seeded(words)))  # type: ignore[arg-type]  # NumPy takes any


def _name(seed: int, *key: Key) -> bytes:
    if isinstance(seed, bool) or not isinstance(seed, WHOLE) or seed < 0:
        raise InputError(f"a seed is a non-negative integer, but {seed!r} came")
    return b"".join(map(_part, (int(seed), *key)))


def _part(part: Key) -> bytes:
    if type(part) is not int:  # integers are the common case
        if isinstance(part, str):
            encoded = part.encode()
            return b"s%d:%b" % (len(encoded), encoded)
        if isinstance(part, bool) or not isinstance(part, WHOLE):
            raise InputError(f"a stream key is made of strings and integers, but {part!r} came")
    encoded = b"%d" % part
    return b"i%d:%b" % (len(encoded), encoded)


class _Seeded(ISeedSequence):
    """A seed sequence with precomputed state."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        """Return the precomputed words that seed a PCG64."""
        if n_words != len(self._words) or dtype != np.uint64:
            raise InputError(f"these are {len(self._words)} words of 64 bits, but {n_words} of {dtype} were asked for")
        return self._words


def _seeded_states(entropy: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return `SeedSequence(row).generate_state(4, np.uint64)` for each row of 8 words, all rows at once.

    NumPy promises never to change this algorithm (O'Neill's `randutils::seed_seq_fe`). `seed_sequence` passes an
    integer, which drops a last word of 0. NumPy itself computes such rows, 1 in 2**32.
    """
    words = np.ascontiguousarray(entropy.T)
    pool = _scrambled(words[:4], 0)
    done = 4
    for source, others in enumerate(_OTHERS):
        pool[others] = _mixed(pool[others], _scrambled(pool[source], done, 3))
        done += 3
    for word in words[4:]:
        pool = _mixed(pool, _scrambled(word, done, 4))
        done += 4
    state = _scrambled(np.concatenate([pool, pool]), 0, constants=_LAST)
    seeded = np.ascontiguousarray(state.T).view("<u8").astype(np.uint64, copy=False)
    for row in np.flatnonzero(words[-1] == 0):
        whole = np.random.SeedSequence(int.from_bytes(entropy[row].tobytes(), "little"))
        seeded[row] = whole.generate_state(4, np.uint64)
    return seeded


def _constants(first: int, factor: int, count: int) -> NDArray[np.uint32]:
    """Return (count + 1, 1) the hash constant of the algorithm before the first and after each of `count` words."""
    powers = [first]
    for _ in range(count):
        powers.append(powers[-1] * factor % 2**32)
    return np.array(powers, dtype=np.uint32)[:, None]


_FIRST = _constants(0x43B0D7E5, 0x931E8875, 4 + 4 * 3 + 4 * 4)
_LAST = _constants(0x8B51F9DD, 0x58F38DED, 8)
_OTHERS = [[target for target in range(4) if target != source] for source in range(4)]


def _scrambled(
    words: NDArray[np.uint32], done: int, count: int = 0, constants: NDArray[np.uint32] = _FIRST
) -> NDArray[np.uint32]:
    """Return the hashes of all words, or of one word `count` times; `done` words were hashed before."""
    count = count or len(words)
    values = (words ^ constants[done : done + count]) * constants[done + 1 : done + 1 + count]
    values ^= values >> np.uint32(16)
    return values


def _mixed(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> NDArray[np.uint32]:
    values = left * np.uint32(0xCA01F9DD) - right * np.uint32(0x4973F715)
    values ^= values >> np.uint32(16)
    return values
