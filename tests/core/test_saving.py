"""A session saved in any phase goes on as if nothing had happened; damage is named; nothing is ever unpickled."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from sessions import warmup_due

from fedpace import Cohort, Diagnostics, Need, Outcome, Probe, Session, make_selector
from fedpace._base.errors import FedpaceError, InputError
from fedpace.core import saving
from fedpace.core.types import Scheme
from fedpace.selectors.random import Random
from fedpace.testing import ToyFleet


@dataclass(frozen=True)
class Memory:
    """What `Patient` remembers: every kind of scalar that a state may hold."""

    rounds: int = 0
    best: float = math.inf
    name: str = "start"
    stages: tuple[int, ...] = (1, 2)
    on: bool = True


@dataclass(frozen=True)
class Patient(Scheme):
    """Probes, remembers, sets deadlines, and has an infinite option."""

    name: ClassVar[str] = "patient"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: int = 3
    limit: float = math.inf
    sizes: tuple[int, ...] = (1, 2, 3)
    note: str | None = None

    def init(self):
        return Memory()

    def probe(self, state, view, rng):
        return Probe(np.sort(rng.choice(view.candidates, self.k, replace=False)))

    def select(self, state, view, rng):
        rows = np.sort(rng.choice(view.candidates, self.k, replace=False))
        why = Diagnostics(
            objective=math.inf,
            predicted_seconds=float(view.delay[rows].max()),
            facts={"nan": math.nan, "count": np.int64(3), "word": "yes", "none": None, "flag": True},
            reasons={int(row): "drawn" for row in rows},
        )
        weights = np.full(self.k, 0.2 + 0.1 * (state.best < 1))
        return Cohort(rows, weights, mode="delta", deadline=500.0, why=why), Memory(
            state.rounds + 1, state.best, "went", (*state.stages, state.rounds), not state.on
        )

    def observe(self, state, report):
        return Memory(state.rounds, min(state.best, float(np.nanmin(report.loss))), state.name, state.stages, state.on)


FLEET = ToyFleet(8, seed=4)


def rounds(session, count):
    return [
        (s.step, s.clients, s.weights.tolist(), s.mode, s.deadline, s.why.predicted_seconds)
        for s in FLEET.play(session, count)
    ]


def make(selector=None):
    return FLEET.session(selector or Patient(), list(range(8)))


def same_session(one, two):
    assert (one.step, one.now, one.clients) == (two.step, two.now, two.clients)
    assert one.coordinator.state == two.coordinator.state
    left, right = one.coordinator.ledger.arrays(), two.coordinator.ledger.arrays()
    assert set(left) == set(right)
    for name, array in left.items():
        np.testing.assert_array_equal(right[name], array, err_msg=name)
        assert right[name].dtype == array.dtype, name


def reopened(session, folder, selector=None):
    session.save(folder)
    back = Session.restore(folder, selector or session.selector)
    same_session(session, back)
    return back


def test_before_anything(tmp_path):
    session = Session(Patient(), seed=9, shares="samples", warmup="lazy", warmup_quota=2, learn_delays=False)
    back = reopened(session, tmp_path)
    assert back.settings == session.settings
    assert back.selector == session.selector


def test_idle(tmp_path):
    session = make()
    rounds(session, 3)
    back = reopened(session, tmp_path)
    assert rounds(back, 4) == rounds(session, 4)
    same_session(session, back)


def test_in_a_warm_up(tmp_path):
    session = make()
    selection = session.select()
    assert selection.warmup
    back = reopened(session, tmp_path)
    assert back.pending.warmup
    for one in (session, back):
        one.observe([FLEET.outcome(client, 0) for client in one.pending.clients])
    assert rounds(back, 3) == rounds(session, 3)


def test_after_the_warm_up(tmp_path):
    session = make()
    session.observe([FLEET.outcome(client, 0) for client in session.select().clients])
    back = reopened(session, tmp_path)
    assert not warmup_due(back)
    assert rounds(back, 3) == rounds(session, 3)


def test_with_a_probe_out(tmp_path):
    session = make()
    rounds(session, 2)
    request = session.probe(now=session.now + 1)
    back = reopened(session, tmp_path)
    assert back.pending_probe == request
    for one in (session, back):
        one.answer({client: FLEET.loss(client, 2) for client in request.clients})
        assert one.select().step == 2, "the answered probe still counts"
        one.abandon()
    same_session(session, back)


def test_with_an_answered_probe(tmp_path):
    session = make()
    rounds(session, 2)
    session.answer(dict.fromkeys(session.probe().clients, 0.5))
    back = reopened(session, tmp_path)
    assert back.select().clients == session.select().clients


def test_with_a_selection_out(tmp_path):
    session = make()
    rounds(session, 2)
    session.answer(dict.fromkeys(session.probe().clients, 0.5))
    selection = session.select()
    back = reopened(session, tmp_path)
    pending = back.pending
    assert (pending.step, pending.clients, pending.mode, pending.deadline) == (2, selection.clients, "delta", 500.0)
    assert pending.weights.tolist() == selection.weights.tolist()
    assert pending.why.objective == math.inf
    assert math.isnan(pending.why.facts.pop("nan"))
    assert pending.why.facts == {"count": 3, "word": "yes", "none": None, "flag": True}
    assert pending.why.reasons == selection.why.reasons
    for one in (session, back):
        one.observe([FLEET.outcome(client, 2) for client in selection.clients], now=one.now + 9)
    assert rounds(back, 3) == rounds(session, 3)


@pytest.mark.parametrize("scheme", ["random", "delayhet-submodular", "delayhet-sampling"])
def test_registered_schemes_are_found_by_name(tmp_path, scheme):
    options = {"max_clients": 0, "target_heterogeneity": 0.5} if scheme == "delayhet-submodular" else {"k": 4}
    session = make(make_selector(scheme, **options))
    rounds(session, 1)
    session.save(tmp_path)
    back = Session.restore(tmp_path)
    assert back.selector == session.selector
    assert rounds(back, 2) == rounds(session, 2)


def test_ids_of_many_kinds(tmp_path):
    ids = ["a", 1, ("x", (2, b"raw")), None, 2.5, b"\xff"]
    session = Session(Random(k=2))
    session.join(ids)
    assert reopened(session, tmp_path).clients == tuple(ids)


def test_an_id_that_cannot_be_written_leaves_the_save_before_it(tmp_path):
    session = Session(Random(k=1))
    session.join(["a"])
    session.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    session.join([frozenset({1})])
    with pytest.raises(InputError, match=r"client frozenset\(\{1\}\) cannot be saved"):
        session.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_files_however_often_it_is_saved(tmp_path):
    session = make()
    for _ in range(3):
        rounds(session, 1)
        session.save(tmp_path / "deep" / "folder")
    names = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    assert len(names) == 2
    assert names[0].startswith("arrays-")
    assert names[1] == "session.json"


def test_saving_twice_writes_the_same_bytes(tmp_path):
    session = make()
    rounds(session, 2)
    session.save(tmp_path / "one")
    session.save(tmp_path / "two")
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]


def test_a_crash_between_the_two_writes_leaves_the_old_state(tmp_path, monkeypatch):
    session = make()
    rounds(session, 2)
    session.save(tmp_path)
    expected = rounds(Session.restore(tmp_path, Patient()), 3)
    rounds(session, 1)

    def crash(path, content, write=saving.write_atomically):
        if path.name == saving.INDEX:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_atomically", crash)
        with pytest.raises(KeyboardInterrupt):
            session.save(tmp_path)
    assert len(list(tmp_path.glob("arrays-*.npz"))) == 2, "the new arrays were written, the old ones are still there"
    assert rounds(Session.restore(tmp_path, Patient()), 3) == expected
    session.save(tmp_path)
    assert Session.restore(tmp_path, Patient()).step == 3
    assert len(list(tmp_path.iterdir())) == 2


# -- damage ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    session = make()
    rounds(session, 1)
    session.answer(dict.fromkeys(session.probe().clients, 0.5))
    session.select()
    session.save(tmp_path)
    return tmp_path


def test_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match=r"expected the file .*session\.json, but it is not there"):
        Session.restore(tmp_path / "nowhere")


def test_missing_arrays(saved):
    next(saved.glob("arrays-*.npz")).unlink()
    with pytest.raises(InputError, match=r"expected the file .*arrays-.*npz, but it is not there"):
        Session.restore(saved, Patient())


@pytest.mark.parametrize("size", [0, 10, 300])
def test_cut_arrays(saved, size):
    path = next(saved.glob("arrays-*.npz"))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"arrays-.*npz is not a readable npz file"):
        Session.restore(saved, Patient())


def test_pickled_arrays_are_refused(saved):
    path = next(saved.glob("arrays-*.npz"))
    arrays = dict(np.load(path))
    arrays["delay"] = np.array([Bomb()] * 8, dtype=object)
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"is not a readable npz file of plain arrays: .*neither numbers nor text"):
        Session.restore(saved, Patient())
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError, match="is not a readable npz file of plain arrays"):
        Session.restore(saved, Patient())


class Bomb:
    """Ends the test run where it is unpickled."""

    def __reduce__(self):
        return (pytest.exit, ("something was unpickled",))


def test_a_cut_index(saved):
    path = saved / "session.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(InputError, match=r"session\.json is not readable JSON"):
        Session.restore(saved, Patient())


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 99}', "null"])
def test_another_format(saved, content):
    (saved / "session.json").write_text(content)
    with pytest.raises(InputError, match=r"session\.json is not a saved coordinator of format 9"):
        Session.restore(saved, Patient())


KEYS = ["arrays", "selector", "state", "settings", "progress", "tasks", "clients", "shell"]


@pytest.mark.parametrize("value", ["missing", "words", 3.5, [], {"a": 1}], ids=repr)
@pytest.mark.parametrize("key", KEYS)
def test_a_damaged_index_is_an_error_of_ours(saved, key, value):
    """Either it makes no difference, or it is refused; never a stray TypeError."""
    path = saved / "session.json"
    index = json.loads(path.read_text())
    if value == "missing":
        del index[key]
    else:
        index[key] = value
    path.write_text(json.dumps(index))
    try:
        Session.restore(saved, Patient())
    except FedpaceError:
        return
    assert value != "missing"


def test_arrays_are_looked_for_in_the_folder_alone(saved):
    path = saved / "session.json"
    index = json.loads(path.read_text())
    index["arrays"] = "../" + index["arrays"]
    path.write_text(json.dumps(index))
    assert Session.restore(saved, Patient()).step == 1


def test_another_selector_is_refused(saved):
    with pytest.raises(
        InputError, match=r"the saved session ran patient with .*'k': 3.* but Patient\(k=4.* give the same"
    ):
        Session.restore(saved, Patient(k=4))
    with pytest.raises(InputError, match="the saved session ran patient"):
        Session.restore(saved, Random())


def test_an_unregistered_selector_must_be_given(saved):
    with pytest.raises(InputError, match="there is no scheme 'patient'"):
        Session.restore(saved)


def test_a_state_that_is_no_dataclass_is_refused(tmp_path):
    @dataclass(frozen=True)
    class Listy(Patient):
        def init(self):
            return [1, 2]

    with pytest.raises(InputError, match="the state of patient is a list: it must be None or a frozen dataclass"):
        Session(Listy()).save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["update", "moment"])
@pytest.mark.parametrize("values", [np.array([[1.0, 2.0]], dtype=object), [[Fraction(1, 2), 1.0]]])
def test_arrays_of_objects_are_refused_when_they_come(field, values):
    """They can be turned into numbers and so be used, but a save with one of them in flight fails."""
    with pytest.raises(InputError, match=f"the {field} of client 'a' must be an array of numbers.*np.asarray"):
        Outcome("a", seconds=1.0, **{field: values})
