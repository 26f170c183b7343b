"""Why a client was or was not chosen: round by round, and summed up, from what a run recorded.

Schemes say why a client is in or out, and hosts record that where it is said (`reasons` among a round's facts). Where
nothing is recorded, what can be read off the record is said instead: the client's delay beside those that were chosen.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedpace.core.checks import FloatArray
from fedpace.core.errors import InputError
from fedpace.records.round import Round
from fedpace.records.run import RunRecord
from fedpace.report import numbers

Part = Literal["chosen", "failed", "measured", "not chosen"]
NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")
COMMON = 3
"""Reasons that the summary names."""


@dataclass(frozen=True)
class Turn:
    """What a client had to do with one round."""

    round: int
    clock: float
    part: Part
    weight: float | None
    reason: str


@dataclass(frozen=True)
class Explanation:
    """One client in one run."""

    label: str
    seed: int
    client: str
    clients: int
    """Clients that the run knows of."""
    delay: float | None
    """Expected seconds; None where the host did not know them."""
    rank: int | None
    """1 = the fastest."""
    rounds: int
    chosen: int
    failed: int
    """Rounds in which it was chosen, but crashed or came too late."""
    measured: int
    """Rounds before which it only measured."""
    mean_weight: float | None
    """Over the rounds in which it was chosen."""
    influence: float
    """Weight over all rounds, per round: 1 / clients where everybody counts the same."""
    typical_chosen: float
    """Rounds in which the median client was chosen."""
    reasons: tuple[tuple[str, int], ...]
    """The commonest, each by an example, and in how many rounds."""
    turns: tuple[Turn, ...]

    def sentences(self) -> list[str]:
        """Return it in words."""
        speed = "its delay is not known" if self.delay is None else f"it takes {numbers.seconds(self.delay)} on average"
        if self.rank is not None:
            speed += f", rank {self.rank} of {self.clients} from the fastest"
        said = [
            f"{self.label}, seed {self.seed}: client {self.client} was chosen in {self.chosen} of {self.rounds} rounds "
            f"(the median client in {self.typical_chosen:g}); {speed}.",
        ]
        if self.chosen:
            said.append(
                f"When chosen it weighed {self.mean_weight:.1%} on average; over all rounds its part of the model's "
                f"steps is {self.influence:.2%}, and {1 / self.clients:.2%} where everybody counts the same."
            )
        if self.failed:
            said.append(f"In {self.failed} of them it crashed or came too late.")
        if self.measured:
            said.append(f"It measured before {self.measured} rounds without training in them.")
        return said


def explain_client(record: RunRecord, client: str) -> Explanation:
    """Return what a run says of one client, named as the host names it."""
    known = _known(record)
    if client not in known:
        some = ", ".join(list(known)[:8]) + (", ..." if len(known) > 8 else "")
        raise InputError(f"there is no client {client!r} in the run of {record.info.label!r}; it has {some}")
    played = [current for current in record.rounds if current.number > 0]
    expected = np.array(record.info.expected_delays)
    place = known.index(client)
    delay = float(expected[place]) if len(expected) == len(known) else None
    rank = None if delay is None else 1 + int((expected < delay).sum())
    turns = tuple(_turn(current, client, place, expected if delay is not None else None) for current in played)
    weights = [turn.weight for turn in turns if turn.part == "chosen" and turn.weight is not None]
    times = Counter(str(name) for current in played for name in current.clients)
    return Explanation(
        label=record.info.label,
        seed=record.info.seed,
        client=client,
        clients=len(known),
        delay=delay,
        rank=rank,
        rounds=len(played),
        chosen=sum(turn.part in ("chosen", "failed") for turn in turns),
        failed=sum(turn.part == "failed" for turn in turns),
        measured=sum(client in map(str, current.warmed) for current in played),
        mean_weight=float(np.mean(weights)) if weights else None,
        influence=sum(weights) / max(1, len(played)),
        typical_chosen=float(np.median([times[name] for name in known])),
        reasons=_common(turns),
        turns=turns,
    )


def _known(record: RunRecord) -> list[str]:
    """Return the clients by name: those with a delay, else all that the rounds speak of."""
    if record.info.expected_delays:
        return [str(client) for client in range(len(record.info.expected_delays))]
    found: dict[str, None] = {}
    for current in record.rounds:
        for names in (current.clients, current.warmed, current.heard, current.probed, current.facts.get("reasons", {})):
            found |= dict.fromkeys(map(str, names))
    return list(found)


def _turn(current: Round, client: str, place: int, expected: FloatArray | None) -> Turn:
    names = [str(name) for name in current.clients]
    recorded = current.facts.get("reasons", {}).get(client)
    if client in names:
        weight = current.weights[names.index(client)] if current.weights else None
        late = client in map(str, current.failed)
        part: Part = "failed" if late else "chosen"
        said = recorded or ("" if current.status == "ok" else current.status)
        return Turn(
            current.number,
            current.clock,
            part,
            weight,
            "; ".join(filter(None, ["crashed or late" if late else "", said])),
        )
    if client in map(str, current.warmed):
        return Turn(current.number, current.clock, "measured", None, recorded or "measured before the round")
    return Turn(current.number, current.clock, "not chosen", None, recorded or _derived(current, place, expected))


def _derived(current: Round, place: int, expected: FloatArray | None) -> str:
    if expected is None or not current.clients:
        return "the scheme chose others, and recorded no reason"
    slowest = float(expected[[int(str(name)) for name in current.clients]].max())
    own = float(expected[place])
    if own > slowest:
        return f"takes {numbers.seconds(own)}, and the slowest that was chosen {numbers.seconds(slowest)}"
    fast = f"{numbers.seconds(own)}, the slowest that was chosen {numbers.seconds(slowest)}"
    return f"fast enough ({fast}), but others were chosen"


def _common(turns: tuple[Turn, ...]) -> tuple[tuple[str, int], ...]:
    """Return the commonest reasons: those that differ in their numbers only are one."""
    counts: Counter[tuple[Part, str]] = Counter()
    example: dict[tuple[Part, str], str] = {}
    for turn in turns:
        if turn.reason:
            key = (turn.part, NUMBER.sub("#", turn.reason))
            counts[key] += 1
            example.setdefault(key, f"{turn.part}: {turn.reason}")
    return tuple((example[key], count) for key, count in counts.most_common(COMMON))
