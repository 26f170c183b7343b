"""Explains from a run's record why a client was or was not selected, round by round and in a summary.

Schemes may give a reason for each client, which is recorded as `reasons` among a round's facts. Without recorded
reasons, the explanation compares the client's delay with those of the selected clients.

Asynchronous schemes select no cohorts: clients work whenever they can, and a step uses the replies that have arrived.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from fedpace._base.checks import FloatArray, bare, did_you_mean, shown
from fedpace._base.errors import InputError
from fedpace._base.registry import selectors
from fedpace.records.influence import Bounded, Influence, named
from fedpace.records.run import Round, RunRecord
from fedpace.report import numbers

Part = Literal["chosen", "failed", "measured", "not chosen", "replied", "no reply"]
NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")
CHANCE = frozenset({"random"})
"""Schemes that use no facts about clients: chance is the only reason for their choices."""
EXCLUDED = "excluded for a while: the server's validation set refused its updates"
MEMORIES = frozenset({"memory-corrected", "client-memory"})
"""Server steps in which a late answer of weight 0 changes what is remembered of its client."""
LATE = "to an older model: it has no weight in this step"
REMEMBERED = f"{LATE}, but changes the memory, and counts in later steps through it"
COMMON = 5
"""Reasons that the summary names; others are counted together."""


@dataclass(frozen=True)
class ClientRound:
    """The part of a client in one round."""

    round: int
    clock: float
    part: Part
    weight: float | None
    """Sum of the weights of its tasks that ended in the round."""
    reason: str
    kind: str = ""
    """Shorter text under which the summary counts the round; empty = the reason itself."""
    left_out: bool = False
    """Whether a robust rule left its update out of the step, so that it had no weight."""


@dataclass(frozen=True)
class Explanation:
    """What a run records about one client."""

    label: str
    seed: int
    client: str
    clients: int
    """Number of clients in the run."""
    delay: float | None
    """Expected seconds; None where the host did not know them."""
    rank: int | None
    """1 = the fastest."""
    in_rounds: bool
    """Whether the scheme works in rounds; else clients reply when they can, and `chosen` counts steps with a reply."""
    rounds: int
    chosen: int
    failed: int
    """Rounds in which it was chosen, but crashed, came too late or was refused."""
    measured: int
    """Rounds before which it only measured."""
    mean_weight: float | None
    """Over the rounds in which it was chosen."""
    influence: float
    """Its part of all weight, averaged over rounds: 1 / clients where all clients count the same."""
    typical_chosen: float
    """Rounds in which the median client was chosen."""
    by_chance: bool
    """Whether the scheme uses no facts about clients."""
    expected_chosen: float
    """Rounds in which each client is chosen where all are as likely: the mean over the clients."""
    reasons: tuple[tuple[str, int], ...]
    """The commonest, each by an example, and in how many rounds; together they are all rounds."""
    turns: tuple[ClientRound, ...]
    mean_work: float = 1.0
    """How much it trained on average, as a multiple of the configured local training."""
    clipped: int = 0
    """Rounds in which its update was clipped."""
    shortest: float = 1.0
    """The least part of its length that was left of one."""
    capped: int = 0
    """Rounds in which its weight was capped."""
    left_out: int = 0
    """Rounds in which a robust rule left its update out of the step."""
    excluded_since: int | None = None
    """The round since whose end it is not asked; None = it is not excluded, or was readmitted."""
    readmit: str = ""
    """What takes that back."""
    forgotten: int = 0
    """Steps in which the server forgot what it remembered of the client."""
    memory: str = ""
    """How the server remembers clients, if it does so in fewer bits than usual."""

    def sentences(self) -> list[str]:
        """Return the explanation as sentences."""
        speed = "its delay is not known" if self.delay is None else f"it takes {numbers.seconds(self.delay)} on average"
        if self.rank is not None:
            speed += f", rank {self.rank} of {self.clients} from the fastest"
        did, units = ("was chosen", "rounds") if self.in_rounds else ("had a reply", "steps")
        said = [
            f"{self.label}, seed {self.seed}: client {bare(self.client)} {did} in {self.chosen} of {self.rounds} "
            f"{units} (the median client in {self.typical_chosen:g}); {speed}.",
        ]
        if self.by_chance:
            said.append(
                f"The scheme draws clients at random, independent of speed and data: {self.expected_chosen:.2g} of "
                f"{self.rounds} rounds are expected for each client."
            )
        if not self.in_rounds:
            said.append("The scheme works without rounds: clients are not chosen, but work whenever they can.")
        if self.mean_weight is not None:
            when = "When chosen it" if self.in_rounds else "Its replies"
            said.append(
                f"{when} weighed {self.mean_weight:.1%} on average; over all {units} its part of the weight is "
                f"{self.influence:.2%}; with equal weights for all clients it would be {1 / self.clients:.2%}."
            )
        if self.mean_work != 1:
            said.append(f"It trained {self.mean_work:.3g} times as much as usual on average: the scheme sets the work.")
        if self.failed:
            said.append(f"In {numbers.counted(self.failed, units[:-1])} it crashed, came too late or was refused.")
        if self.measured:
            before = numbers.counted(self.measured, units[:-1])
            said.append(f"Before {before} it sent measurements only, and did not train.")
        said += self._bounded(units[:-1])
        if self.memory:
            said.append(f"The server remembers clients {self.memory}.")
        if self.forgotten:
            said.append(
                f"In {numbers.counted(self.forgotten, units[:-1])} the server forgot what it remembered of it: memory "
                "was full (memory_gib), or it had been silent for too long."
            )
        return said

    def _bounded(self, unit: str) -> list[str]:
        """Return in words how its influence was bounded."""
        said = []
        if self.clipped:
            said.append(
                f"In {numbers.counted(self.clipped, unit)} its update was clipped, to "
                f"{numbers.percent(self.shortest)} of its length at the least."
            )
        if self.capped:
            said.append(f"In {numbers.counted(self.capped, unit)} its weight was capped.")
        if self.left_out:
            said.append(f"In {numbers.counted(self.left_out, unit)} the robust rule left its update out.")
        if self.excluded_since is not None:
            said.append(
                f"It is excluded since {unit} {self.excluded_since}, for a while: the server's validation set "
                f"refused its updates. {self.readmit} asks it again."
            )
        return said


def explain_client(record: RunRecord, client: str) -> Explanation:
    """Return what a run records about a client, given by the name or the number that the host uses."""
    known, names = _known(record), record.info.names
    called = client
    if client in names:
        client = known[names.index(client)]
    elif names and client in known:
        called = f"{names[known.index(client)]} (number {client})"
    if client not in known:
        there = names or known
        some = ", ".join(map(bare, there[:8])) + (", ..." if len(there) > 8 else "")
        near = did_you_mean(client, there)
        if not names and known == [str(number) for number in range(len(known))]:  # "16" is not meant by "61"
            near, some = "", f"the clients 0 to {len(known) - 1}"
        raise InputError(f"there is no client {shown(client)} in the run of {record.info.label!r}.{near} It has {some}")
    played = [current for current in record.rounds if current.number > 0]
    expected = np.array(record.info.expected_delays)
    place = known.index(client)
    delay = float(expected[place]) if len(expected) == len(known) else None
    rank = None if delay is None else 1 + int((expected < delay).sum())
    stated = expected if delay is not None else None
    in_rounds = _in_rounds(record)
    chance = record.info.selector in CHANCE
    if chance:
        turns = tuple(_drawn(current, client, len(known)) for current in played)
    else:
        late = REMEMBERED if record.info.server.get("name") in MEMORIES else LATE
        told = _turn if in_rounds else partial(_step, late=late)
        turns = tuple(told(current, client, place, stated) for current in played)
    turns = tuple(_bounded(turn, current, client) for turn, current in zip(turns, played, strict=True))
    turns = _excluded(turns, played, client)
    bounded = Influence(played)
    mine = bounded.clients.get(client, Bounded())
    hosted = "host" in record.info.experiment
    weighed = [turn.weight for turn in turns if turn.part in ("chosen", "replied")]
    weights = [weight for weight in weighed if weight is not None]
    times = Counter(name for current in played for name in set(map(str, current.clients)))
    return Explanation(
        label=record.info.label,
        seed=record.info.seed,
        client=called,
        clients=len(known),
        delay=delay,
        rank=rank,
        in_rounds=in_rounds,
        rounds=len(played),
        chosen=sum(turn.part in ("chosen", "failed", "replied") for turn in turns),
        failed=sum(turn.part == "failed" for turn in turns),
        measured=sum(client in map(str, current.warmed) for current in played),
        mean_weight=float(np.mean(weights)) if weights else None,
        influence=_influence(played, turns),
        typical_chosen=float(np.median([times[name] for name in known])),
        by_chance=chance,
        expected_chosen=sum(times.values()) / len(known),
        reasons=_common(turns),
        turns=turns,
        mean_work=_mean_work(played, client),
        clipped=mine.clipped,
        shortest=mine.shortest,
        capped=mine.capped,
        left_out=mine.left_out,
        excluded_since=bounded.excluded.get(client),
        forgotten=sum(client in named(current.facts.get("forgotten")) for current in played),
        memory=next((str(each.facts["memory"]) for each in reversed(played) if "memory" in each.facts), ""),
        readmit=f"`fedpace readmit FOLDER {shlex.quote(client)}`" if hosted else "`Coordinator.readmit`",
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


def _in_rounds(record: RunRecord) -> bool:
    try:
        return getattr(selectors[record.info.selector], "rounds", True)
    except InputError:  # a plug-in that is not here: nearly all work in rounds
        return True


def _influence(played: list[Round], turns: tuple[ClientRound, ...]) -> float:
    parts = [
        turn.weight / total
        for current, turn in zip(played, turns, strict=True)
        if turn.part != "failed"
        and turn.weight is not None
        and not turn.left_out
        and (total := sum(current.weights)) > 0
    ]
    return sum(parts) / max(1, len(played))


def _turn(current: Round, client: str, place: int, expected: FloatArray | None) -> ClientRound:
    recorded = current.facts.get("reasons", {}).get(client)
    if client in map(str, current.clients):
        said = recorded or ("the scheme recorded no reason" if current.status == "ok" else current.status)
        if client in map(str, current.failed):
            why = f"{_failure(current, client)}; {said}"
            return ClientRound(current.number, current.clock, "failed", _weight(current, client), why)
        return ClientRound(current.number, current.clock, "chosen", _weight(current, client), said)
    if client in map(str, current.warmed):
        return ClientRound(current.number, current.clock, "measured", None, recorded or "measured before the round")
    return ClientRound(
        current.number, current.clock, "not chosen", None, recorded or _derived(current, place, expected)
    )


def _drawn(current: Round, client: str, clients: int) -> ClientRound:
    """Return the part of a client in a round whose clients were drawn at random."""
    turn = _turn(current, client, 0, None)
    if current.status != "ok" or turn.part == "measured":
        return turn
    drawn = f"drawn by chance, {len(current.clients)} of {clients}"
    said = {"chosen": drawn, "failed": f"{_failure(current, client)}; {drawn}"}
    return replace(turn, reason=said.get(turn.part, f"not among the {len(current.clients)} of {clients} drawn"))


def _step(current: Round, client: str, place: int, expected: FloatArray | None, *, late: str) -> ClientRound:
    """Return a client's part in a step of an asynchronous scheme; `late` is the word for answers without weight."""
    recorded = current.facts.get("reasons", {}).get(client)
    part: Part
    if client not in map(str, current.clients):
        own = "" if expected is None else f"; it takes {numbers.seconds(float(expected[place]))}"
        since = f"the step came {numbers.seconds(current.seconds)} after the one before"
        part, weight, said = "no reply", None, f"at work or away: {since}{own}"
    elif client in map(str, current.failed):
        part, weight, said = "failed", _weight(current, client), _failure(current, client)
    else:
        part, weight = "replied", _weight(current, client)
        said = late if weight == 0 else "in time for the step"
    whole = "; ".join(filter(None, [said, recorded]))
    return ClientRound(current.number, current.clock, part, weight, whole, said)


def _bounded(turn: ClientRound, current: Round, client: str) -> ClientRound:
    """Return a turn that also says how much the client trained, and how its influence was bounded in the round."""
    facts, said = current.facts, []
    if (work := _fact(facts, "work", client)) is not None:
        said.append(f"it trained {work:.3g} times as much as usual")
    if (factor := _fact(facts, "clipped", client)) is not None:
        said.append(f"its update was clipped to {numbers.percent(factor)} of its length")
    if (weight := _fact(facts, "capped", client)) is not None:
        said.append(f"its weight was capped to {numbers.percent(weight)}")
    left_out = client in named(facts.get("left out"))
    if left_out:
        said.append("the robust rule left its update out of the step")
    if client in named(facts.get("forgotten")):
        said.append("the server forgot what it remembered of it")
    if not said:
        return turn
    reason = "; ".join([turn.reason, *said])
    kind = "; ".join([turn.kind, *said]) if turn.kind else ""
    return replace(turn, reason=reason, kind=kind, left_out=left_out)


def _fact(facts: Mapping[str, Any], name: str, client: str) -> float | None:
    """Return the number that a fact has for a client; None where it has none."""
    found = facts.get(name)
    value = found.get(client) if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _mean_work(played: list[Round], client: str) -> float:
    """Return a client's mean work over the rounds in which it had a task; 1 where none is recorded."""
    mine = [current for current in played if client in map(str, current.clients)]
    amounts = [1.0 if (work := _fact(current.facts, "work", client)) is None else work for current in mine]
    return float(np.mean(amounts)) if amounts else 1.0


def _excluded(turns: tuple[ClientRound, ...], played: list[Round], client: str) -> tuple[ClientRound, ...]:
    """Return the turns of a client, with the true reason where it was not asked since it is excluded."""
    found, excluded = [], False
    for turn, current in zip(turns, played, strict=True):
        if excluded and turn.part in ("not chosen", "no reply"):
            turn = replace(turn, part="not chosen", reason=EXCLUDED, kind="")
        found.append(turn)
        if "excluded" in current.facts:  # from the next round on; said where it changes
            excluded = client in named(current.facts["excluded"])
    return tuple(found)


def _failure(current: Round, client: str) -> str:
    """Return why a client failed in a round."""
    return str(current.facts.get("failures", {}).get(client, "crashed or late"))


def _weight(current: Round, client: str) -> float | None:
    """Return what all of a client's tasks weighed: without rounds several may end in one step."""
    if not current.weights:
        return None
    pairs = zip(current.clients, current.weights, strict=True)
    return float(sum(weight for name, weight in pairs if str(name) == client))


def _derived(current: Round, place: int, expected: FloatArray | None) -> str:
    if expected is None or not current.clients:
        return "the scheme chose others, and recorded no reason"
    slowest = float(expected[[int(str(name)) for name in current.clients]].max())
    own = float(expected[place])
    if own > slowest:
        return f"takes {numbers.seconds(own)}, and the slowest that was chosen {numbers.seconds(slowest)}"
    fast = f"{numbers.seconds(own)}, the slowest that was chosen {numbers.seconds(slowest)}"
    return f"fast enough ({fast}), but others were chosen"


def _common(turns: tuple[ClientRound, ...]) -> tuple[tuple[str, int], ...]:
    """Return the commonest reasons: those that differ in their numbers only are one."""
    counts: Counter[tuple[Part, str]] = Counter()
    examples: dict[tuple[Part, str], dict[str, int]] = {}
    for turn in turns:
        stated = turn.kind or turn.reason
        key = (turn.part, NUMBER.sub("#", stated))
        counts[key] += 1
        examples.setdefault(key, {}).setdefault(stated, turn.round)
    named = []
    for key, count in counts.most_common(COMMON):
        stated, number = next(iter(examples[key].items()))
        named.append((f"{key[0]}{f', such as in {number}' if len(examples[key]) > 1 else ''}: {stated}", count))
    others = len(turns) - sum(count for _, count in named)
    return (*named, ("for other reasons", others)) if others else tuple(named)
