"""Bad replies for testing a connection of fedpace to a framework: one client must not stop the server or own the model.

    from fedpace.testing.hostile import CLIENTS, LIAR, Played, check_host

    def play(change):
        ...                  # run ROUNDS rounds with all CLIENTS in every round; LIAR sends change(reply)
        return Played(failed, models)

    def test_bad_replies():
        check_host(play)

`change` takes and returns a `ClientReply`, which the host packs as its clients do. If packing fails or `change` raises,
the client has crashed, and the result must be the same. All other clients are honest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.testing.selector_checks import ContractError

CLIENTS = ("anna", "bert", "cora", "dora", "liar")
LIAR = CLIENTS[-1]
ROUNDS = 3
REACH = 100.0
"""An update that is clipped carries the model no further away than this many times the size of the others' model."""


@dataclass(frozen=True, eq=False)
class ClientReply:
    """A client's reply, independent of the framework."""

    model: Any
    """Name -> array."""
    metrics: Any = field(default_factory=dict)
    """Metrics, including the client's loss under the framework's name for it."""
    samples: Any = 10
    note: Any = field(default_factory=dict)
    """The note that `report_mod` or `Reporter` adds to the model."""


Change = Callable[[ClientReply], ClientReply]


@dataclass(frozen=True)
class Attack:
    """One kind of bad reply."""

    name: str
    change: Change
    refused: bool = True
    """True: the client has failed in the first round, later it may fail again or be asked no more, and the others'
    models make every step as if it had crashed. False: the reply may be used in part; nobody else fails, and the model
    stays finite."""
    clipped: bool = False
    """True: the update is far too long. It may count in part, but it does not carry the model away (`REACH`)."""


@dataclass(frozen=True, eq=False)
class Played:
    """The result of `ROUNDS` rounds."""

    failed: Sequence[Collection[str]]
    """Names of the failed clients in each round."""
    models: Sequence[Mapping[str, NDArray[Any]]]
    """The shared model after each round."""


def crash(reply: ClientReply) -> ClientReply:
    """Crash instead of sending a reply."""
    raise RuntimeError("this client was told to crash")


def in_note(**entries: Any) -> Change:
    """Put entries into the note."""
    return lambda reply: replace(reply, note={**reply.note, **entries})


def in_metrics(loss: Any) -> Change:
    """Report this loss."""
    return lambda reply: replace(reply, metrics=dict.fromkeys(reply.metrics, loss))


def with_samples(samples: Any) -> Change:
    """Report this number of samples."""
    return lambda reply: replace(reply, samples=samples)


def in_arrays(change: Callable[[NDArray[Any]], Any]) -> Change:
    """Change every array of the model."""
    return lambda reply: replace(reply, model={name: change(array) for name, array in reply.model.items()})


def _floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def _first(model: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return dict(list(model.items())[1:])


def _with(array: NDArray[Any], value: float) -> NDArray[Any]:
    changed = np.array(array)
    changed.reshape(-1)[:1] = value
    return changed


NOTES: dict[str, dict[str, Any]] = {
    "negative seconds": {"seconds": -1.0},
    "infinite seconds": {"seconds": math.inf},
    "seconds that freeze the clock": {"seconds": 1e300},
    "seconds as text": {"seconds": "soon"},
    "seconds as a list": {"seconds": [1.0]},
    "negative samples": {"samples": -3.0},
    "negative compute": {"compute": -1.0},
    "labels as text": {"labels": ["a"]},
    "negative labels": {"labels": [1.0, -1.0]},
    "labels that are no list": {"labels": 5},
    "a moment without a shape": {"moment": b"1234"},
    "a moment whose shape is text": {"moment": b"1234", "shape": ["a", "b"]},
    "a moment whose shape is infinite": {"moment": b"1234", "shape": [1.0, math.inf]},
    "a moment of no rows": {"moment": b"", "shape": [0, 65_536]},
    "a moment of too few bytes": {"moment": _floats(1, 2, 3), "shape": [2, 2]},
    "a moment of too many columns": {"moment": b"\0" * 4 * 70_000, "shape": [1, 70_000]},
    "a moment of 32 GiB": {"moment": b"1234", "shape": [131_072, 65_536]},
    "a moment that is not finite": {"moment": _floats(1, math.inf), "shape": [1, 2]},
    "a sketch of odd bytes": {"update": b"1234567"},
    "a sketch that is not finite": {"update": np.array([math.nan]).tobytes()},
    "a name that is a number": {"name": 7},
    "a name without end": {"name": "x" * 100_000},
    "a name that no file can hold": {"name": "\ud800"},
}
MODELS: dict[str, Change] = {
    "no model": lambda reply: replace(reply, model=None),
    "an empty model": lambda reply: replace(reply, model={}),
    "a missing array": lambda reply: replace(reply, model=_first(reply.model)),
    "an array too many": lambda reply: replace(reply, model={**reply.model, "more": np.ones(3, np.float32)}),
    "arrays of one more axis": in_arrays(lambda array: array[None]),
    "arrays that broadcast": in_arrays(lambda array: np.array(1.0, np.float32)),
    "NaN in the model": in_arrays(lambda array: _with(array, math.nan)),
    "infinity in the model": in_arrays(lambda array: _with(array, -math.inf)),
    "too large for the model's type": in_arrays(lambda array: _with(np.asarray(array, np.float64), 1e200)),
    "text in the model": in_arrays(lambda array: np.full(np.shape(array), "a")),
    "complex numbers in the model": in_arrays(lambda array: np.asarray(array, np.complex128)),
}
LONG: dict[str, Change] = {
    "an update of 1e30": in_arrays(lambda array: _with(array, 1e30)),
    "an update a million times as long": in_arrays(lambda array: array + np.asarray(1e6, array.dtype)),
}
CATALOGUE: tuple[Attack, ...] = (
    *(Attack(name, in_note(**entries)) for name, entries in NOTES.items()),
    Attack("a note that is a list", lambda reply: replace(reply, note=["seconds"])),
    *(Attack(f"a loss of {loss!r}", in_metrics(loss)) for loss in (math.nan, -math.inf, 1e300, "low", [0.5])),
    *(Attack(f"samples of {samples!r}", with_samples(samples)) for samples in (-1, 1e300, [1])),
    *(Attack(name, change) for name, change in MODELS.items()),
    *(Attack(name, change, refused=False, clipped=True) for name, change in LONG.items()),
    Attack("a moment of another width", in_note(moment=_floats(*range(1, 8)), shape=[1, 7]), refused=False),
    Attack("another client's name", in_note(name=CLIENTS[0]), refused=False),
    Attack("no note", lambda reply: replace(reply, note={}), refused=False),
    Attack("more metrics", lambda reply: replace(reply, metrics={**reply.metrics, "more": 1.0}), refused=False),
)


def check_host(play: Callable[[Change], Played], attacks: Iterable[Attack] = CATALOGUE) -> None:
    """Raise a ContractError if one bad client stops the host, makes another client fail, or affects the model.

    Args:
        play: runs `ROUNDS` rounds in which all CLIENTS take part and LIAR's replies are changed.
        attacks: the attacks to try.
    """
    silent = play(crash)
    if len(silent.models) != ROUNDS or any(set(failed) != {LIAR} for failed in silent.failed):
        raise ContractError(f"{ROUNDS} rounds in which only {LIAR!r} crashes should have ended so, but {silent} came")
    for attack in attacks:
        try:
            played = play(attack.change)
        except Exception as problem:
            raise ContractError(f"{attack.name}: one reply stopped the server: {problem!r}") from problem
        _check(attack, played, silent)


def _check(attack: Attack, played: Played, silent: Played) -> None:
    if len(played.models) != ROUNDS:
        raise ContractError(f"{attack.name}: {len(played.models)} of {ROUNDS} rounds were played")
    for number, (failed, model) in enumerate(zip(played.failed, played.models, strict=True)):
        must = attack.refused and number == 0  # later the host may no longer ask a refused client
        if set(failed) - {LIAR} or (must and LIAR not in failed):
            expected = f"{LIAR!r} alone" if must else f"nobody but {LIAR!r}"
            raise ContractError(
                f"{attack.name}: {expected} should have failed in round {number + 1}, not {set(failed)}"
            )
        for name, array in model.items():
            if not np.isfinite(array).all():
                raise ContractError(f"{attack.name}: {name!r} of the model is not finite after round {number + 1}")
            size = max(1.0, float(np.abs(silent.models[number][name]).max(initial=0.0)))
            if attack.clipped and float(np.abs(array - silent.models[number][name]).max(initial=0.0)) > REACH * size:
                raise ContractError(f"{attack.name}: {name!r} of the model was carried away in round {number + 1}")
            if attack.refused and not np.allclose(array, silent.models[number][name], rtol=1e-5, atol=1e-7):
                raise ContractError(f"{attack.name}: {name!r} of the model is not that of the other clients alone")
