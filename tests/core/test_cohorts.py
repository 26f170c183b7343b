"""What a badly written selector answers is refused with the scheme, the client and the value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fedpace import Cohort, Need, Outcome, Probe, Session
from fedpace._base.errors import InputError
from fedpace.core.types import Stateless

AWAY = "d"


@dataclass(frozen=True)
class Scripted(Stateless):
    """Answers what it is given."""

    name: ClassVar[str] = "scripted"
    needs: ClassVar[frozenset[Need]] = frozenset()

    cohort: Any = None
    asks: Any = None

    def probe(self, state, view, rng):
        return self.asks

    def select(self, state, view, rng):
        return self.cohort, None


def choose(selector):
    session = Session(selector)
    session.join(["a", "b", "c", AWAY])
    return session, session.select(available=["a", "b", "c"])


BAD = [
    (([0, 0, 1], [0.5, 0.25, 0.25]), {}, "scripted chose client 'a' 2 times: add its weights and name it once"),
    (([1, 3], [0.5, 0.5]), {}, "scripted chose client 'd', which is not available now"),
    (([0, 4], [0.5, 0.5]), {}, "scripted chose row 4, but there are rows 0 to 3"),
    (([-1, 0], [0.5, 0.5]), {}, "scripted chose row -1, but there are rows 0 to 3"),
    (([], []), {}, r"scripted chose nobody \(an array of shape \(0,\)\)"),
    (([[0, 1]], [[0.5, 0.5]]), {}, r"scripted chose nobody \(an array of shape \(1, 2\)\)"),
    (([0, 1], [1.0]), {}, "scripted chose 2 clients but gave 1 weights"),
    (([0, 1], [0.5, 0.6]), {}, r"scripted gave weights that sum to 1\.1: in mode 'average' they sum to 1"),
    (([0, 1], [0.5, math.nan]), {}, "scripted gave client 'b' the weight nan, which is not finite"),
    (([0, 1], [math.inf, 0.5]), {"mode": "delta"}, "scripted gave client 'a' the weight inf, which is not finite"),
    (([0, 1, 2], [0.5, -0.5, 1.0]), {}, r"scripted gave client 'b' the weight -0\.5: in mode 'average' weights"),
    (([0], [1.0]), {"mode": "sum"}, "scripted asks for the mode 'sum'; there are 'average' and 'delta'"),
    (([0], [1.0]), {"deadline": 0.0}, r"scripted set a deadline of 0\.0 s; it must be above 0"),
    (([0], [1.0]), {"deadline": math.nan}, "scripted set a deadline of nan s"),
    (([0, 1], [0.5, 0.5]), {"quorum": 3}, "scripted calls 3 clients a quorum, but chose 2"),
    (([0, 1], [0.5, 0.5]), {"quorum": -1}, "scripted calls -1 clients a quorum, but chose 2"),
]


@pytest.mark.parametrize(("arrays", "options", "words"), BAD)
def test_bad_cohorts(arrays, options, words):
    with pytest.raises(InputError, match=words):
        choose(Scripted(Cohort(*arrays, **options)))


def test_a_refused_cohort_leaves_the_session_idle_and_the_state_as_it_was():
    @dataclass(frozen=True)
    class Counting(Scripted):
        def init(self):
            return Memory()

        def select(self, state, view, rng):
            cohort = Cohort([0], [2.0 if state.calls == 0 and view.now == 0 else 1.0])
            return cohort, Memory(state.calls + 1)

        def observe(self, state, report):
            return state

    @dataclass(frozen=True)
    class Memory:
        calls: int = 0

    session = Session(Counting())
    session.join(["a"])
    with pytest.raises(InputError, match="sum to 2"):
        session.select()
    assert session.coordinator.state == Memory(0)
    session.select(now=1.0)
    session.observe([Outcome("a", seconds=1.0)])
    assert session.coordinator.state == Memory(1)


@pytest.mark.parametrize("weights", [[0.5, 0.6], [-0.5, 3.0], [0.0, 0.0]])
def test_weights_are_free_in_delta_mode(weights):
    _, selection = choose(Scripted(Cohort([0, 1], weights, mode="delta")))
    assert selection.weights.tolist() == weights
    assert selection.mode == "delta"


def test_rounding_is_no_mistake():
    third = np.full(3, 1 / 3)
    choose(Scripted(Cohort([0, 1, 2], third * (1 + 1e-12))))
    with pytest.raises(InputError, match="sum to"):
        choose(Scripted(Cohort([0, 1, 2], third * (1 + 1e-6))))


def test_the_selection_is_the_cohort_in_the_hosts_words():
    cohort = Cohort([2, 0], [0.75, 0.25], deadline=30.0, quorum=1)
    session, selection = choose(Scripted(cohort))
    assert selection.clients == ("c", "a")
    assert selection.weights.tolist() == [0.75, 0.25]
    assert (selection.mode, selection.deadline, selection.step, selection.warmup) == ("average", 30.0, 0, False)
    assert selection.quorum == 1
    assert selection.why is cohort.why
    assert session.pending is selection


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (Probe([3]), "scripted probes client 'd', which is not available now"),
        (Probe([0, 0]), "scripted probes client 'a' 2 times"),
        (Probe([]), "scripted probes nobody"),
        (Probe([7]), "scripted probes row 7, but there are rows 0 to 3"),
        (Probe([0], kind="age"), "scripted probes for 'age'; there are 'loss' and 'gradient'"),
    ],
)
def test_bad_probes(asks, words):
    session = Session(Scripted(asks=asks))
    session.join(["a", "b", "c", AWAY])
    with pytest.raises(InputError, match=words):
        session.probe(available=["a", "b", "c"])
    assert session.pending_probe is None
