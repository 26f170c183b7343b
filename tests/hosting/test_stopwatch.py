"""Where a server's seconds went: by the clock, and of these the thread's own."""

from __future__ import annotations

import pytest

from fedpace.hosting import live_server as stopwatch
from fedpace.hosting.live_server import Spent, Stopwatch


@pytest.fixture
def watch(monkeypatch):
    """Two decisions, of 0.3 s with 0.01 s of work and of 0.1 s with 0.04, and one that raises after a wait."""
    clock, core = iter([0.0, 0.3, 1.0, 1.1, 2.0, 7.0]), iter([5.0, 5.01, 6.0, 6.04, 7.0, 7.0])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(stopwatch.time, "thread_time", lambda: next(core))
    watch = Stopwatch()
    for _ in range(2):
        with watch("deciding"):
            pass
    with pytest.raises(KeyError), watch("waiting"):
        raise KeyError
    return watch


def test_waiting_for_a_core_is_told_from_work(watch):
    deciding = watch.spent["deciding"]
    assert deciding.times == 2
    assert (deciding.seconds, deciding.work) == pytest.approx((0.4, 0.05))
    assert (deciding.longest, deciding.most_work) == pytest.approx((0.3, 0.04)), "they need not be of the same time"
    assert watch.spent["waiting"] == Spent(1, 5.0, 0.0, 5.0, 0.0)


def test_the_line_has_the_longest_first(watch):
    assert str(watch) == (
        "waiting 5.00 s in 1 (0.00 s of work, 0.0 ms at the most), "
        "deciding 0.40 s in 2 (0.05 s of work, 40.0 ms at the most)"
    )
