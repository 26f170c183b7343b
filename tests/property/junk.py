"""Anything at all, made quickly: a maker takes a generator and returns a value.

Plain seeded draws over pools of values that break things. Hypothesis, which the other property tests use, takes ten
milliseconds to think of a case; what is fuzzed here takes less than one, so that ten thousand cases are affordable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

Maker = Callable[[Random], Any]

EDGES = (0.0, -0.0, 1e-320, 5e-324, 1e-9, 0.5, 1.0, 1e9, 1e70, 1e155, 1e160, 1e300, 1.79e308, math.inf, math.nan)
WHOLE = (0, 1, 2, 3, 7, 10, 255, 2**31, 2**53 + 1, 2**63, 2**64, 10**20, 10**400)
LETTERS = "aZ0 -_./\\\n\t\0\"'{}[],:é中\U0001f600\ud800"


def floats(rng: Random) -> float:
    """Return a number that may be none."""
    way = rng.random()
    if way < 0.5:
        return rng.choice((1, -1)) * rng.choice(EDGES)
    return rng.uniform(-10, 10) if way < 0.8 else rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)


def whole(rng: Random) -> int:
    """Return a whole number, small or beyond everything."""
    return rng.randint(-3, 10) if rng.random() < 0.7 else rng.choice((1, -1)) * rng.choice(WHOLE)


def text(most: int = 4, letters: str = LETTERS) -> Maker:
    """Return a maker of text."""
    return lambda rng: "".join(rng.choice(letters) for _ in range(rng.randint(0, most)))


def raw(most: int = 4) -> Maker:
    """Return a maker of bytes."""
    return lambda rng: rng.randbytes(rng.randint(0, most))


def arrays(rng: Random) -> Any:
    """Return an array of up to three axes, of whatever type, empty ones included."""
    shape = tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 3)))
    count = math.prod(shape)
    kind = rng.random()
    if kind < 0.6:
        return np.array([floats(rng) for _ in range(count)], dtype=np.float64).reshape(shape)
    if kind < 0.7:
        return np.ones(shape)
    if kind < 0.8:
        return np.array([rng.randint(-3, 10) for _ in range(count)], dtype=np.int64).reshape(shape)
    if kind < 0.86:
        return np.array([rng.random() < 0.5 for _ in range(count)], dtype=np.bool_).reshape(shape)
    if kind < 0.9:
        return np.full(shape, 1 + 1j)
    if kind < 0.94:
        return np.full(shape, "a")
    if kind < 0.97:
        return np.full(shape, None, dtype=object)
    with np.errstate(over="ignore"):
        return np.array([floats(rng) for _ in range(count)]).reshape(shape).astype(np.float16)


def pick(choices: Sequence[Any]) -> Maker:
    """Return a maker of one of these values."""
    return lambda rng: rng.choice(choices)


def mostly(*good: Any, of: Maker | None = None) -> Maker:
    """Return a maker of one of these values in three cases of five, and of junk, or what `of` makes, in the others."""
    return lambda rng: rng.choice(good) if rng.random() < 0.6 else (of or junk)(rng)


def one_of(*makers: Maker) -> Maker:
    """Return a maker of what one of these makes."""
    return lambda rng: rng.choice(makers)(rng)


def listed(maker: Maker, most: int = 3) -> Maker:
    """Return a maker of lists."""
    return lambda rng: [maker(rng) for _ in range(rng.randint(0, most))]


def table(keys: Maker, values: Maker, most: int = 2) -> Maker:
    """Return a maker of tables."""
    return lambda rng: {keys(rng): values(rng) for _ in range(rng.randint(0, most))}


def together(*makers: Maker) -> Maker:
    """Return a maker of tuples."""
    return lambda rng: tuple(maker(rng) for maker in makers)


scalars = one_of(
    pick((None,)), pick((True, False)), whole, floats, floats, text(), raw(), pick((1j, np.float64(math.nan), object()))
)


def junk(rng: Random, depth: int = 2) -> Any:
    """Return anything."""
    way = rng.random()
    if depth == 0 or way < 0.35:
        return scalars(rng)
    if way < 0.65:
        return arrays(rng)
    inner: Maker = lambda rng: junk(rng, depth - 1)  # noqa: E731
    if way < 0.9:
        made = listed(inner)(rng)
        return tuple(made) if rng.random() < 0.2 else made
    return table(text(3), inner)(rng)


def json_value(rng: Random, depth: int = 3) -> Any:
    """Return what JSON can hold, with numbers that it should not."""
    way = rng.random()
    if depth == 0 or way < 0.6:
        return one_of(pick((None, True, False)), whole, floats, text(5, LETTERS.replace("\ud800", "")))(rng)
    inner: Maker = lambda rng: json_value(rng, depth - 1)  # noqa: E731
    return listed(inner)(rng) if way < 0.8 else table(text(5, LETTERS.replace("\ud800", "")), inner, 3)(rng)
