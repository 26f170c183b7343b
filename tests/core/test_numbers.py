"""Numbers and types that nobody means: each is refused with a sentence, and changes nothing."""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np
import pytest
from steps import apply_answers

import fedpace
from fedpace import Coordinator, FedpaceError, Outcome, Session, Settings, make_selector, numerics, stream
from fedpace._base.files import read_json, read_npz
from fedpace.delays.availability import Availability
from fedpace.delays.trace import delays_from_array
from fedpace.sim.stopping import Stop
from fedpace.sim.training import Training
from fedpace.trust import Trust

HUGE = 10**400


def after_reports(scheme: str = "pace", **bad: object) -> Session:
    """Play rounds in which client 0 reports something bad."""
    session = Session(make_selector(scheme), seed=0)
    session.join(range(6))
    rng = stream(0, "numbers")
    for _ in range(3):
        outcomes = []
        for client in session.select().clients:
            told = {"seconds": 1.0 + client, "moment": rng.normal(size=(9, 3)), "update": rng.normal(size=8)}
            outcomes.append(Outcome(client, **(told | (bad if client == 0 else {}))))
        session.observe(outcomes)
    return session


@pytest.mark.parametrize(
    "bad",
    [
        {"moment": np.full((2, 3), 1e155)},
        {"update": np.full(8, 1e160)},
        {"seconds": 1e300},
        {"seconds": "3"},
        {"seconds": HUGE},
        {"seconds": [1.0]},
        {"measured": "3"},
        {"measured": -1.0},
        {"loss": HUGE},
        {"loss": "0.5"},
        {"samples": HUGE},
        {"moment": [[HUGE, 1, 1]]},
        {"moment": "abc"},
        {"update": {}},
        {"finished": "no"},
    ],
    ids=str,
)
def test_a_report_that_makes_no_sense_is_refused_and_changes_nothing(bad):
    with pytest.raises(FedpaceError):
        after_reports(**bad)


@pytest.mark.parametrize(("name", "size"), [("moment", 1e60), ("update", 1e60), ("moment", 1e-200), ("update", 1e-200)])
def test_what_is_not_refused_never_blocks_a_selection(name, size):
    shape = (2, 3) if name == "moment" else 8
    assert after_reports(**{name: np.full(shape, size)}).step == 2


def session() -> Session:
    made = Session(make_selector("random", k=2))
    made.join(list("abcd"))
    return made


@pytest.mark.parametrize(
    "call",
    [
        lambda: session().select(now="3"),
        lambda: session().select(now=HUGE),
        lambda: session().select(now=[1.0]),
        lambda: session().select(available=5),
        lambda: session().select(available=[["a"]]),
        lambda: session().join(5),
        lambda: session().join([["x"]]),
        lambda: session().join(["z"], delays=5),
        lambda: session().join(["z"], delays=[HUGE]),
        lambda: session().join(["z"], samples=[HUGE]),
        lambda: session().join(["z"], labels=[[HUGE]]),
        lambda: session().leave(5),
        lambda: session().leave([["x"]]),
        lambda: Settings(deadline=HUGE),
        lambda: Settings(shares=[]),
        lambda: make_selector("oort", overcommit=math.inf),
        lambda: make_selector("oort", overcommit=HUGE),
        lambda: make_selector("tifl", tiers=10**9),
        lambda: make_selector("tifl", tiers=2.5),
        lambda: make_selector("pace", ridge=HUGE),
        lambda: Training(lr=1e300),
        lambda: Training(lr=HUGE),
        lambda: numerics.best_prefix(np.zeros((0, 0)), []),
        lambda: numerics.best_prefix([[HUGE]], [1.0]),
        lambda: numerics.pairwise_heterogeneity([]),
        lambda: numerics.pairwise_heterogeneity([np.zeros((0, 0))]),
        lambda: numerics.expected_max([], [], 1),
        lambda: numerics.whitened_gram([]),
    ],
)
def test_wrong_types_and_sizes_are_refused(call):
    with pytest.raises(FedpaceError):
        call()


@pytest.mark.parametrize("outcomes", [5, None, [5], [Outcome(["a"], seconds=1.0)], "ab"])
def test_what_is_no_report_is_refused(outcomes):
    made = session()
    made.select()
    with pytest.raises(FedpaceError):
        made.observe(outcomes)
    made.observe([Outcome(client, seconds=1.0) for client in made.pending.clients])


@pytest.mark.parametrize(
    "call",
    [
        lambda c, t: c.receive("x", Outcome(t.client, seconds=1.0)),
        lambda c, t: c.receive([], Outcome(t.client, seconds=1.0)),
        lambda c, t: c.receive(t.id, 5),
        lambda c, t: c.receive(t.id, None),
        lambda c, t: c.receive(t.id, Outcome("nobody", seconds=1.0)),
        lambda c, t: c.receive(t.id, Outcome(t.client, seconds=1.0), now="3"),
        lambda c, t: c.receive(t.id, Outcome(t.client, seconds=1e300), now=1.0),
        lambda c, t: c.lost(t.id, seconds=HUGE),
        lambda c, t: c.due("3"),
    ],
)
def test_a_coordinator_refuses_what_is_no_answer_and_waits_on(call):
    coordinator = Coordinator(make_selector("random", k=2))
    coordinator.join(list("abc"))
    tasks = coordinator.due(0.0).tasks
    with pytest.raises(FedpaceError):
        call(coordinator, tasks[0])
    for task in tasks:
        assert coordinator.receive(task.id, Outcome(task.client, seconds=1.0), now=1.0)
    assert coordinator.due(1.0).step is not None


# -- files ---------------------------------------------------------------------------------------------------


def lying_npz(path, shape, body=b""):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header.getvalue() + body)
    return path


@pytest.mark.parametrize("shape", [(10**12,), (10**12, 10**12), (-1,), (10**7,)])
def test_an_array_that_is_not_there_takes_no_memory(tmp_path, shape):
    with pytest.raises(FedpaceError, match="claims"):
        read_npz(lying_npz(tmp_path / "a.npz", shape, b"\0" * 10**4))


def test_a_true_array_comes_back(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10**6), b=np.arange(3))
    assert read_npz(tmp_path / "a.npz")["a"].size == 10**6


@pytest.mark.parametrize("content", [b"[" * 100_000, b"1" * 6000, b"\xff\xfe", b""])
def test_json_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FedpaceError, match="not readable JSON"):
        read_json(tmp_path / "a.json")


def test_json_of_eight_terabytes_is_not_read(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(8 * 10**12)  # a file with nothing in it, which takes no room
    with pytest.raises(FedpaceError, match="limit"):
        read_json(tmp_path / "a.json")


def test_a_server_steps_within_bounds_of_one_client():
    """Nine clients at +1 and one at -8.99: what moved the model by thousands moves it by no more than one of them."""
    for name in ("nesterov", "fedexp", "average"):
        model = fedpace.SharedModel({"x": np.zeros(50)}, fedpace.make_server(name))
        updates = [np.ones(50)] * 9 + [np.full(50, -8.99)]
        for _ in range(5):
            trained = [{"x": model.arrays["x"] + update} for update in updates]
            before = model.arrays["x"].copy()
            apply_answers(model, [(0.1, each) for each in trained], "average")
            assert np.abs(model.arrays["x"] - before).max() < 10, name


def test_who_takes_next_to_no_time_takes_none():
    """The ratio of two delays is a number, whatever is claimed of them."""
    made = Coordinator(make_selector("pace"), Settings(learn_delays=False, warmup="lazy"))
    made.join(range(6), delays=[5e-324, 1e-300, 1.0, 1.0, 1.0, 1.0])
    assert (made.view().delay[:2] == 0).all()
    for now in range(1, 8):
        due = made.due(float(now))
        if due.step is not None:
            made.stepped(float(now))
        for task in made.tasks:
            made.receive(task.id, Outcome(task.client, seconds=1e12, moment=np.eye(3), update=np.ones(4)), float(now))
    assert np.isfinite(made.view().delay).all()
    assert np.isfinite(made.view().accumulated["lateness"]).all()


def test_a_clock_that_jumps_does_not_stop_the_server():
    """A host that says 0 first and then nanoseconds of 1970: nobody took that long, and the step is made."""
    made = Coordinator(make_selector("random", k=1), Settings(deadline=1e300))
    made.join(range(2))
    (task,) = made.due(0.0).tasks
    made.lost(task.id, 1.7e18)
    assert made.due(1.7e18).step is not None
    made.stepped(1.7e18)
    (task,) = made.due(1.7e18).tasks
    made.receive(task.id, Outcome(task.client, seconds=1.0), 3.4e18)
    assert made.due(3.4e18).step is not None
    made.stepped(3.4e18)
    assert made.step == 2


def test_a_feature_that_only_one_client_has_a_trace_of():
    """Its inverse is no number: everybody would be compared by infinities."""
    rng = stream(0, "faint")
    factors = [rng.normal(size=(9, 3)) * [1, 1, 0] for _ in range(5)]
    factors[0][:, 2] = 1e-155
    assert np.isfinite(numerics.pairwise_heterogeneity(factors)).all()
    assert np.isfinite(numerics.pairwise_heterogeneity([1e-160 * factor for factor in factors])).all()


@pytest.mark.parametrize("seconds", ["3", -1.0, math.nan, 1e300, HUGE])
def test_a_step_takes_seconds(seconds):
    made = Coordinator(make_selector("random", k=1))
    made.join(range(2))
    (task,) = made.due(0.0).tasks
    made.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    made.due(1.0)
    with pytest.raises(FedpaceError, match="a step"):
        made.stepped(1.0, seconds=seconds)
    assert made.stepped(1.0, seconds=1.0).seconds == 1.0


def test_who_misses_a_deadline_beyond_all_time_has_failed():
    made = Coordinator(make_selector("random", k=2), Settings(deadline=1e300))
    made.join(range(2))
    first, _ = made.due(0.0).tasks
    made.receive(first.id, Outcome(first.client, seconds=1.0), 1.0)
    assert made.wake_at == 1e300
    assert made.due(1e300).step is not None
    made.stepped(1e300)
    assert made.step == 1


@pytest.mark.parametrize("name", ["seconds", "measured", "loss", "samples"])
@pytest.mark.parametrize("number", [np.float16(7.9), np.array(7.9, dtype=np.float16), np.float32(7.9), np.int8(7)])
def test_small_numbers_of_numpy_are_numbers(name, number):
    """A half float ends at 65,504: compared with a large number as such, it overflows."""
    assert np.isfinite(after_reports(**{name: number}).view().delay[0])


@pytest.mark.parametrize("lengths", [np.zeros(2), np.zeros((3, 1)), np.array(["a", "b", "c"]), np.full(3, 1j)], ids=str)
def test_lengths_that_were_saved_and_cannot_be_are_refused(lengths):
    trust = Trust()
    trust.append(range(3))
    with pytest.raises(FedpaceError, match="'trust/longest/update'"):
        trust.load({**trust.arrays(), "longest/update": lengths}, 3)


@pytest.mark.parametrize("target", [math.nan, HUGE, np.array(0.9), "0.9", 1 + 1j])
def test_targets_are_finite_numbers(target):
    with pytest.raises(FedpaceError, match="target of stop must be a finite number"):
        Stop(target=target)


@pytest.mark.parametrize(
    "given", [np.array([1 + 1j, 2.0]), [[1.0], [1.0, 2.0]], [HUGE, 1.0], "abc", np.zeros((0, 1, 2))]
)
def test_delays_are_numbers(given):
    with pytest.raises(FedpaceError, match="delays must be"):
        delays_from_array(given)


def test_options_of_delays_fit_into_a_float():
    with pytest.raises(
        FedpaceError, match=r"slow_away of availability must lie between -1 and 1, but a whole number of 1329 bits came"
    ):
        Availability(slow_away=HUGE)


@pytest.mark.parametrize("name", ["trust", "learn_delays", "warmup_trains", "hear_late"])
def test_switches_are_true_or_false(name):
    with pytest.raises(FedpaceError, match=f"{name} must be True or False, but 'no' came"):
        Settings(**{name: "no"})
    assert getattr(Settings(**{name: False}), name) is False
