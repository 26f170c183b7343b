"""Options are declared with their constraints, and one place checks them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options


@dataclass(frozen=True)
class Example(Options):
    name: ClassVar[str] = "example"

    k: Annotated[int, AtLeast(1)] = 10
    lr: Annotated[float, Above(0), FINITE] = 1.0
    part: Annotated[float, Between(0, 1)] = 0.5
    momentum: Annotated[float, Between(0, 1, "[)")] = 0.0
    clip: Annotated[float, AtLeast(1, zero="clip nothing")] = 0.0
    mode: Literal["strict", "soft"] = "strict"
    fast: bool = False
    price: Annotated[float, Above(0)] | None = None
    seed: int = 0


@dataclass(frozen=True)
class Unnamed(Options):
    options_of: ClassVar[str | None] = "clock"

    deadline: Annotated[float, Above(0)] = math.inf


@dataclass(frozen=True)
class Derived(Example):
    low: Annotated[int, AtLeast(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.k:
            raise InputError("low must be at most k")


GOOD = [
    {},
    {"k": np.int64(3)},
    {"k": 1, "lr": 1, "part": 1, "momentum": 0.99, "clip": 1.5, "mode": "soft", "fast": np.bool_(True), "price": 2.0},
    {"clip": 0},
]
BAD = [
    ({"k": 0}, "k of example must be at least 1, but 0 came"),
    ({"k": 2.5}, "k of example must be a whole number of at least 1, but 2.5 came"),
    ({"k": True}, "k of example must be a whole number of at least 1, but True came"),
    ({"k": "3"}, "k of example must be a whole number of at least 1, but '3' came"),
    ({"lr": 0}, "lr of example must be above 0, but 0 came"),
    ({"lr": math.inf}, "lr of example must be a finite number, but inf came"),
    ({"lr": math.nan}, "lr of example must be above 0, but nan came"),
    ({"lr": "1"}, "lr of example must be above 0, but '1' came"),
    ({"lr": 10**400}, "lr of example must be above 0, but a whole number of 1329 bits came"),
    ({"part": -0.1}, "part of example must lie between 0 and 1, but -0.1 came"),
    ({"momentum": 1}, r"momentum of example must lie in \[0, 1\), but 1 came"),
    ({"clip": 0.5}, "clip of example must be at least 1, or 0 to clip nothing, but 0.5 came"),
    ({"mode": "loud"}, "mode of example must be one of 'strict', 'soft', but 'loud' came"),
    ({"fast": "no"}, "fast of example must be True or False, but 'no' came"),
    ({"price": 0}, "price of example must be above 0, but 0 came"),
    ({"seed": 1.0}, "seed of example must be a whole number, but 1.0 came"),
]


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_valid_options_are_taken(options):
    Example(**options)


@pytest.mark.parametrize(("options", "text"), BAD, ids=lambda value: str(value)[:40])
def test_invalid_options_are_named_with_what_came(options, text):
    with pytest.raises(InputError, match=f"^{text}$"):
        Example(**options)
    with pytest.raises(InputError, match=f"^{text}$"):
        Derived(**options)


def test_rules_of_several_options_come_after():
    with pytest.raises(InputError, match="low must be at most k"):
        Derived(k=1, low=2)


def test_a_class_without_a_name_says_what_it_configures():
    with pytest.raises(InputError, match="deadline of clock must be above 0, but 0 came"):
        Unnamed(deadline=0)
