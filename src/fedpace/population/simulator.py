"""`simulate`: days of a fleet of anonymous devices under an admission policy, with a real model or without one.

The clock moves in ticks. In each tick devices check in (`Fleet`), the policy admits some (`Admission`), and tasks that
end in the tick are delivered in the order of their ends. With a `Learning`, every admitted device trains a real model
on data drawn from its group, and the server rule of the policy makes the steps. Without one, only load and
participation are simulated, at about a second per virtual day.

Everything random comes from `stream(seed, ...)`: the same arguments give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, above, at_least, finite, whole
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.server_rule import Answers, ServerRule, SingleArray
from fedpace.population.admission import DAY, Admission, AdmissionPolicy, Limits, averaged
from fedpace.population.edges import Edges, HeldSums, check_outages
from fedpace.population.fleet import Fleet, Group
from fedpace.population.learning import Learning, Trainer
from fedpace.population.steering import Steering
from fedpace.records.holding import held_from

LOAD_SECONDS = 600.0
"""Seconds per entry of the recorded load."""


class Evaluation(NamedTuple):
    """The model at one time."""

    clock: float
    version: int
    accuracy: float
    """Accuracy on the population's data."""
    groups: FloatArray
    """(groups,) accuracy on each group's data."""


@dataclass(eq=False)
class Result:
    """What happened in a simulated fleet."""

    policy: str
    groups: tuple[Group, ...]
    seconds: float
    """Virtual seconds that were simulated."""
    evaluations: list[Evaluation] = field(default_factory=list)
    load: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Check-ins per second, a mean over each `LOAD_SECONDS`."""
    steps: int = 0
    step_sizes: list[int] = field(default_factory=list)
    """Answers of each step."""
    mean_lags: list[float] = field(default_factory=list)
    """Mean lag of the answers of each step."""
    admitted: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    answered: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lost: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    abandoned: int = 0
    """Tasks that a synchronous round ended."""
    received: int = 0
    """Vectors that the root received: one per answer, or one per partial sum of an edge."""
    check_ins: int = 0
    weight: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(groups,) part of the weight of all steps that each group had."""
    held: float | None = None
    """Seconds from which the target is held; None = it was not."""
    model: SingleArray | None = None

    @property
    def shares(self) -> FloatArray:
        """(groups,) share of each group in the population."""
        devices = np.array([group.devices for group in self.groups], dtype=np.float64)
        return np.asarray(devices / devices.sum())

    def peak_to_mean(self, first_day: int = 1) -> float:
        """Return the highest load over the mean load from day `first_day` on; NaN without so many days."""
        load = self.load[round(first_day * DAY / LOAD_SECONDS) :]
        return float(load.max() / load.mean()) if load.size and load.any() else math.nan

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        last = self.evaluations[-1] if self.evaluations else None
        return {
            "policy": self.policy,
            "devices": int(sum(group.devices for group in self.groups)),
            "seconds": self.seconds,
            "held_seconds": self.held,
            "accuracy": None if last is None else last.accuracy,
            "worst_group_accuracy": None if last is None else float(last.groups.min()),
            "steps": self.steps,
            "mean_answers_per_step": float(np.mean(self.step_sizes)) if self.step_sizes else None,
            "mean_lag": float(np.mean(self.mean_lags)) if self.mean_lags else None,
            "check_ins": self.check_ins,
            "admitted": int(self.admitted.sum()),
            "answered": int(self.answered.sum()),
            "lost": int(self.lost.sum()),
            "abandoned": self.abandoned,
            "vectors_received": self.received,
            "mean_check_ins_per_second": float(self.load.mean()) if self.load.size else None,
            "peak_check_ins_per_second": float(self.load.max()) if self.load.size else None,
            "peak_to_mean_after_the_first_day": _plain(self.peak_to_mean()),
            "groups": {
                group.name: {
                    "share": float(share),
                    "answers": int(answers),
                    "weight": float(weight),
                    "accuracy": None if last is None else float(last.groups[row]),
                }
                for row, (group, share, answers, weight) in enumerate(
                    zip(self.groups, self.shares, self.answered, self.weight, strict=True)
                )
            },
        }


def simulate(
    groups: Sequence[Group],
    policy: AdmissionPolicy,
    *,
    limits: Limits | None = None,
    learning: Learning | None = None,
    steering: Steering | None = None,
    server: ServerRule[Any] | None = None,
    seconds: float = DAY,
    tick: float = 0.0,
    start_hour: float = 0.0,
    rollout: float = DAY,
    evaluate_every: float = 60.0,
    target: float | None = None,
    hold: int = 10,
    seed: int = 0,
    outages: Sequence[tuple[float, float]] = (),
    edges: Edges | None = None,
    watch: Callable[[float, Admission, Result], None] | None = None,
) -> Result:
    """Return what happens in a fleet under an admission policy.

    Args:
        groups: the fleet.
        policy: the admission policy.
        limits: concurrency, minimum separation and so on.
        learning: what is learnt; None = only load and participation are simulated.
        steering: pace steering; None = rejected devices return in `limits.retry_between`.
        server: server rule; None = that of the policy.
        seconds: virtual seconds to simulate.
        tick: seconds per tick; 0 = 2 with learning, 60 without.
        start_hour: hour of the server's day at which the simulation begins.
        rollout: seconds over which devices first hear of the server; 0 = all that are eligible check in at once.
        evaluate_every: virtual seconds between evaluations.
        target: accuracy on the population's data at which the simulation ends, if it is held.
        hold: evaluations over which the mean must meet the target.
        seed: for all draws.
        outages: (start, end) seconds in which the server does not answer; devices try again as `limits.retry_between`
            says, and tasks that end meanwhile are lost, unless there are edges to take the answers.
        edges: edge aggregators between devices and root; None = devices answer the root.
        watch: called after each tick with the clock, the admission and the result so far.
    """
    tick = tick or (60.0 if learning is None else 2.0)
    above(seconds, 0, "seconds")
    finite(seconds, "seconds")
    above(evaluate_every, 0, "evaluate_every")
    at_least(start_hour, 0, "start_hour")
    whole(hold, 1, "hold")
    check_outages(outages, "an outage")
    shifted = [_shifted(group, start_hour) for group in groups]
    fleet = Fleet(shifted, tick=tick, seed=seed, rollout=rollout)
    admission = Admission(policy, limits, shares=fleet.shares, steering=steering, seed=seed)
    run = _Run(fleet, admission, learning, server, edges, seed)
    result = Result(policy.name, tuple(groups), 0.0, weight=np.zeros(len(shifted)))
    load = np.zeros(math.ceil(seconds / LOAD_SECONDS))
    next_evaluation = 0.0
    while fleet.now < seconds:
        now = fleet.now
        if run.trainer is not None and now >= next_evaluation:
            result.evaluations.append(run.evaluate(now))
            next_evaluation += evaluate_every
            if target is not None and (held := held_since(result, target, hold, evaluate_every)) is not None:
                result.held = held
                break
        visits = fleet.check_ins()
        count = int(visits.sum())
        result.check_ins += count
        load[int(now // LOAD_SECONDS)] += count / LOAD_SECONDS
        run.tick(visits, result, any(start <= now < end for start, end in outages))
        if watch is not None:
            watch(fleet.now, admission, result)
    book = admission.book
    result.seconds = fleet.now
    result.load = load[: max(1, int(fleet.now // LOAD_SECONDS))]
    result.admitted, result.answered, result.lost = book.admitted.copy(), book.answered.copy(), book.lost.copy()
    result.steps = book.version
    if (total := result.weight.sum()) > 0:
        result.weight = result.weight / total
    result.model = run.used
    return result


def held_since(result: Result, target: float, hold: int, every: float) -> float | None:
    """Return the seconds from which the accuracy holds the target; None = it does not yet."""
    pairs = [(evaluation.clock, evaluation.accuracy) for evaluation in result.evaluations]
    _, held = held_from(pairs, target, "up", hold=hold, every=every)
    return None if held is None else pairs[held][0]


class _Run:
    """Tasks in flight, the buffer and the model of one simulation."""

    def __init__(
        self,
        fleet: Fleet,
        admission: Admission,
        learning: Learning | None,
        server: ServerRule[Any] | None,
        edges: Edges | None,
        seed: int,
    ) -> None:
        self.fleet, self.admission, self.seed = fleet, admission, seed
        self.names = [group.name for group in fleet.groups]
        self.trainer = None if learning is None else Trainer(learning, self.names)
        self.model: SingleArray | None = None if self.trainer is None else self.trainer.initial
        self.used: Any = self.model
        """The model to use: the last one, or a mean over the last steps where the policy says so."""
        self.rule = server or admission.server
        self.state: Any = None if self.model is None else self.rule.init(np.zeros(self.model.size))
        self.shares = np.array([fleet.shares[name] for name in self.names])
        self._medians = np.array([group.seconds for group in fleet.groups])
        self._spreads = np.array([group.spread for group in fleet.groups])
        self._dropouts = np.array([group.dropout for group in fleet.groups])
        self._held = None if edges is None else HeldSums(edges, self.names)
        self._rng = stream(seed, "tasks")
        self._ends: dict[int, list[tuple[float, int, int, int]]] = {}
        """Tick -> (end, group, version, number) of tasks; number -1 = the device drops out."""
        self._versions: dict[int, _Version] = {}
        self._buffer: list[tuple[int, int, int]] = []
        """(group, version, number) of the answers since the last step."""

    def tick(self, visits: IntArray, result: Result, down: bool) -> None:
        """Admit devices, deliver what ends in this tick, and make the steps that are due."""
        fleet, admission, held = self.fleet, self.admission, self._held
        now, book = fleet.now, admission.book
        lost = np.full(len(self.names), down) if held is None else held.dead(now)
        dead = lost | down
        told = admission.admit_counts(np.where(dead, 0, visits), now)
        self._start(told.accepted.sum(0), now)
        unanswered = np.where(dead, visits.sum(0), 0)
        fleet.settle(told, admission.rest(), unanswered, admission.limits.retry_between)
        ends = self._ends.pop(round(now / fleet.tick), ())
        for end, group, version, number in sorted(ends):
            known = self._versions.get(version)
            if known is None:  # its round was abandoned
                continue
            known.in_flight -= 1
            failed = number < 0 or bool(lost[group])
            if not failed and held is not None and (down or not held.passes_on(group)):
                held.add(group, version, number)
                continue
            book.advance(max(end, book.now))
            if failed:
                book.end(group, failed=True)
                if known.in_flight == 0 and admission.policy.abandons:
                    self._step_if_due(result)
            else:
                self._receive(group, version, [number], result)
            self._forget(version)
        if held is not None and not down:
            book.advance(max(fleet.now, book.now))
            for part in held.due(fleet.now):
                if part.version in self._versions:
                    self._receive(*part, result)
                    self._forget(part.version)
        if admission.policy.abandons:
            self._step_if_due(result)

    def _receive(self, group: int, version: int, numbers: list[int], result: Result) -> None:
        """Put answers of one group and version into the buffer, and make the step if it is due."""
        self.admission.book.end(group, len(numbers))
        self._buffer += [(group, version, number) for number in numbers]
        result.received += 1
        self._step_if_due(result)

    def _step_if_due(self, result: Result) -> None:
        if self._buffer and self.admission.step_due(self.admission.book.now):
            self._step(result)

    def _start(self, counts: IntArray, now: float) -> None:
        total = int(counts.sum())
        if not total:
            return
        groups = np.repeat(np.arange(counts.size), counts)
        seconds = self._medians[groups] * np.exp(self._spreads[groups] * self._rng.standard_normal(total))
        dropped = self._rng.random(total) < self._dropouts[groups]
        seconds = np.where(dropped, seconds * self._rng.random(total), seconds)
        version = self.admission.book.version
        known = self._versions.setdefault(version, _Version(self.model))
        numbers = np.full(total, -1)
        numbers[~dropped] = known.add(groups[~dropped])
        known.in_flight += total
        tick = self.fleet.tick
        places = ((now + seconds) // tick).astype(np.int64)
        for place, end, group, number in zip(
            places.tolist(), (now + seconds).tolist(), groups.tolist(), numbers.tolist(), strict=True
        ):
            self._ends.setdefault(place, []).append((end, group, version, number))

    def _step(self, result: Result) -> None:
        admission, book = self.admission, self.admission.book
        groups = np.array([group for group, _, _ in self._buffer], dtype=np.int64)
        versions = np.array([version for _, version, _ in self._buffer], dtype=np.int64)
        weights = admission.weigh(groups, versions)
        np.add.at(result.weight, groups, weights)
        result.step_sizes.append(groups.size)
        result.mean_lags.append(float((book.version - versions).mean()))
        if self.trainer is not None and self.model is not None:
            updates = np.stack([self._update(version, number) for _, version, number in self._buffer])
            step, squares = weights @ updates, np.einsum("ij,ij->i", updates, updates)
            answers = Answers(
                step, weights, self.model + step, mean_square=float(weights @ squares), version=book.version
            )
            moved, self.state = self.rule.apply(self.state, self.model.astype(np.float64), answers)
            self.model = np.asarray(moved, dtype=np.float32)
            part = admission.policy.averaging
            self.used = averaged(self.used, moved, book.version + 1, part) if part else self.model
            if not np.isfinite(self.model).all():
                raise InputError(f"training diverged in step {book.version}: use smaller steps (lr)")
        self._buffer.clear()
        if admission.policy.abandons:
            result.abandoned += int(book.in_flight.sum())
            self._versions.clear()
        admission.stepped(book.now)
        for version in list(self._versions):
            self._forget(version)

    def _update(self, version: int, number: int) -> SingleArray:
        assert self.trainer is not None
        return self._versions[version].update(
            number, self.trainer, lambda part: stream(self.seed, "devices", version, part)
        )

    def _forget(self, version: int) -> None:
        known = self._versions.get(version)
        if known is None or known.in_flight or version == self.admission.book.version:
            return
        if self._held is not None and self._held.holds(version):
            return
        if not any(held == version for _, held, _ in self._buffer):
            del self._versions[version]

    def evaluate(self, now: float) -> Evaluation:
        """Return the accuracy of the current model."""
        assert self.trainer is not None
        groups = self.trainer.group_accuracy(self.used)
        return Evaluation(now, self.admission.book.version, float(self.shares @ groups), groups)


class _Version:
    """The devices that were sent one version of the model; trained together when the first update is needed."""

    def __init__(self, model: SingleArray | None) -> None:
        self.model = model
        self.in_flight = 0
        self._groups: list[IntArray] = []
        self._updates: list[SingleArray] = []
        self._count = 0
        self._trained = 0
        self._parts = 0

    def add(self, groups: IntArray) -> IntArray:
        """Add devices; return their numbers."""
        self._groups.append(groups)
        numbers = self._count + np.arange(groups.size)
        self._count += groups.size
        return numbers

    def update(self, number: int, trainer: Trainer, rng: Callable[[int], np.random.Generator]) -> SingleArray:
        """Return the update of a device."""
        if number >= self._trained:
            assert self.model is not None
            groups = np.concatenate(self._groups)
            found = trainer.updates(self.model, groups, rng(self._parts))
            self._updates.append(found)
            self._trained += groups.size
            self._groups, self._parts = [], self._parts + 1
        for found in self._updates:
            if number < len(found):
                return np.asarray(found[number])
            number -= len(found)
        raise AssertionError(number)


def _shifted(group: Group, hours: float) -> Group:
    return group if not hours else Group(**{**vars(group), "zone": group.zone + hours})


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
