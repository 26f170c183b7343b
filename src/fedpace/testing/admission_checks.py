"""`check_admission`: the contract of an admission policy, for policies of fedpace and of other packages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedpace._base.rng import stream
from fedpace.population.admission import Accept, Admission, AdmissionPolicy, CheckIn, Limits, Reject
from fedpace.population.book import GroupBook

GROUPS = ("fast", "slow", "new")
DELAYS = {"fast": 5.0, "slow": 40.0, "new": 15.0}
VISITS = ("first", "again", "retry")


def check_admission(policy: AdmissionPolicy, *, seed: int = 0, check_ins: int = 600, concurrency: int = 20) -> None:
    """Play a fleet under the policy; raise AssertionError with a sentence if it breaks the contract.

    Devices of three groups check in, one group only from the middle on. Some drop out, some trained too recently. The
    contract: the limits hold, quotas and weights are finite and not negative, no device is counted twice, windows are
    valid, the same events give the same answers, and a book that is saved and loaded goes on in the same way.
    """
    first = _play(policy, seed, check_ins, concurrency)
    _check(first == _play(policy, seed, check_ins, concurrency), policy, "the same events gave different answers")
    _check("accept" in first, policy, "it admitted nobody in an empty fleet")


def _play(policy: AdmissionPolicy, seed: int, check_ins: int, concurrency: int) -> list[Any]:
    rng = stream(seed, "check_admission")
    limits = Limits(concurrency=concurrency, starts_per_second=5.0)
    admission = Admission(policy, limits, seed=seed)
    events: list[Any] = []
    running: list[tuple[float, str, int, bool]] = []
    buffer: list[tuple[str, int]] = []
    now, abandoned = 100.0, 0
    for turn in range(check_ins):
        now += float(rng.exponential(1.0))
        for ended in sorted(task for task in running if task[0] <= now):
            running.remove(ended)
            _, group, version, drops = ended
            if drops:
                admission.lost(group, now)
            else:
                admission.answered(group, now)
                buffer.append((group, version))
            if admission.step_due(now):
                abandoned += _step(policy, admission, buffer, now, events)
                if policy.abandons:
                    running = []
                    break
        groups = GROUPS if turn > check_ins // 2 else GROUPS[:2]
        group = groups[int(rng.integers(len(groups)))]
        tired = bool(rng.random() < 0.1)
        visit = VISITS[int(rng.integers(3))]
        answer = admission.admit(CheckIn(group, since_trained=60.0 if tired else np.inf, visit=visit), now)  # type: ignore[arg-type]
        events.append("accept" if isinstance(answer, Accept) else answer)
        if isinstance(answer, Reject):
            low, high = answer.retry_between
            _check(0 < low <= high < np.inf and bool(answer.why), policy, f"it gave the window {answer.retry_between}")
        else:
            _check(not tired, policy, "it admitted a device that trained a minute ago")
            _check(answer.version == admission.book.version, policy, "it sent an old version of the model")
            running.append((now + float(rng.exponential(DELAYS[group])), group, answer.version, rng.random() < 0.1))
        book = admission.book
        most = policy.room(GroupBook.of({"any": 1.0}), concurrency)
        _check(int(book.in_flight.sum()) <= most, policy, f"{book.in_flight.sum()} devices train, but {most} may")
        _check(
            int(book.in_flight.sum()) == book.training == len(running), policy, "tasks in flight are counted wrongly"
        )
        total = int((book.in_flight + book.answered + book.lost).sum()) + abandoned
        _check(int(book.admitted.sum()) == total, policy, "an admitted device was lost or counted twice")
        quotas = policy.quotas(book, concurrency)
        _check(quotas.shape == (len(book),) and bool((quotas >= 0).all()), policy, f"its quotas are {quotas}")
        again = GroupBook.load(json.loads(json.dumps(book.saved())))
        same = np.array_equal(policy.quotas(again, concurrency), quotas)
        _check(
            same and policy.chance(again, concurrency) == policy.chance(book, concurrency), policy, "saving changes it"
        )
    return events


def _step(
    policy: AdmissionPolicy, admission: Admission, buffer: list[tuple[str, int]], now: float, events: list[Any]
) -> int:
    weights = admission.weigh([group for group, _ in buffer], [version for _, version in buffer])
    _check(weights.shape == (len(buffer),), policy, f"it gave {weights.shape} weights for {len(buffer)} answers")
    _check(bool((weights >= 0).all()) and bool(np.isfinite(weights).all()), policy, f"its weights are {weights}")
    _check(0 <= float(weights.sum()) <= 1 + 1e-9, policy, f"its weights sum to {weights.sum()}")
    each: dict[tuple[str, int], float] = {}
    same = all(
        each.setdefault(answer, weight) == weight for answer, weight in zip(buffer, weights.tolist(), strict=True)
    )
    _check(same, policy, "answers of one group to one version weigh differently, so that edges cannot add them up")
    in_flight = int(admission.book.in_flight.sum())
    admission.stepped(now)
    events.append(("step", weights.tolist()))
    buffer.clear()
    return in_flight if policy.abandons else 0


def _check(holds: bool, policy: AdmissionPolicy, sentence: str) -> None:
    if not holds:
        raise AssertionError(f"the admission policy {policy.name}: {sentence}")
