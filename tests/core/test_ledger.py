"""The ledger: rows come and go, facts stay with their client, and what does not fit is refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace import Need, Outcome
from fedpace._base.errors import InputError
from fedpace.core.ledger import Ledger


def filled(**options):
    ledger = Ledger(**options)
    ledger.join(["a", "b", "c"])
    outcomes = [
        Outcome(
            client,
            seconds=10.0 * (row + 1),
            loss=float(row),
            samples=row + 5,
            moment=np.full((2, 3), row + 1.0),
            update=np.full(4, row + 1.0),
        )
        for row, client in enumerate("abc")
    ]
    ledger.set_labels(np.arange(3), np.arange(6).reshape(3, 2))
    ledger.fold(outcomes, step=7)
    return ledger


def test_nothing_is_known_of_a_newcomer():
    ledger = Ledger()
    assert ledger.join(["a", "b"]).tolist() == [0, 1]
    assert np.isnan(ledger.columns["delay"]).all()
    assert np.isnan(ledger.columns["loss"]).all()
    assert ledger.columns["loss_step"].tolist() == [-1, -1]
    assert ledger.columns["participations"].tolist() == [0, 0]
    for need in set(Need) - {Need.WORK}:
        assert not ledger.known(frozenset({need})).any(), need
    assert ledger.known(frozenset()).all()


def test_facts_are_folded():
    ledger = filled()
    assert ledger.columns["loss"].tolist() == [0.0, 1.0, 2.0]
    assert ledger.columns["loss_step"].tolist() == [7, 7, 7]
    assert ledger.columns["samples"].tolist() == [5.0, 6.0, 7.0]
    assert ledger.columns["participations"].tolist() == [1, 1, 1]
    assert ledger.columns["failures"].tolist() == [0, 0, 0]
    assert ledger.known(frozenset(Need)).all()


def test_rows_move_up_and_take_their_facts_along():
    ledger = filled()
    before = ledger.columns["delay"].copy()
    ledger.leave(["b"])
    assert ledger.ids == ["a", "c"]
    assert ledger.row("c") == 1
    assert "b" not in ledger
    np.testing.assert_array_equal(ledger.columns["delay"], before[[0, 2]])
    assert ledger.columns["loss"].tolist() == [0.0, 2.0]
    np.testing.assert_array_equal(ledger.tables["labels"], [[0, 1], [4, 5]])
    np.testing.assert_array_equal(ledger.tables["updates"], [[1.0] * 4, [3.0] * 4])
    np.testing.assert_array_equal(ledger.moments.factor(1), np.full((2, 3), 3.0))
    ledger.join(["b"])
    assert ledger.row("b") == 2
    assert np.isnan(ledger.columns["delay"][2]), "who comes back is a stranger"
    assert ledger.known(frozenset({Need.LABELS})).tolist() == [True, True, False]
    assert ledger.known(frozenset({Need.UPDATE})).tolist() == [True, True, False]
    assert ledger.known(frozenset({Need.MOMENT})).tolist() == [True, True, False]


def test_an_estimate_follows_its_client_when_rows_move():
    ledger, alone = filled(), filled()
    ledger.leave(["b"])
    for book in (ledger, alone):
        book.fold([Outcome("c", seconds=33.0)], step=8)
    assert ledger.columns["delay"][ledger.row("c")] == pytest.approx(alone.columns["delay"][2])
    assert ledger.columns["delay"][ledger.row("a")] == pytest.approx(alone.columns["delay"][0])


def test_several_may_leave_and_nobody_at_all():
    ledger = filled()
    ledger.leave([])
    assert len(ledger) == 3
    ledger.leave(iter(["c", "a", "a"]))
    assert ledger.ids == ["b"]


def test_unknown_clients_leave_nothing_changed():
    ledger = filled()
    with pytest.raises(InputError, match="client 'z' is not in the roster of 3 clients: let it join first"):
        ledger.leave(["a", "z"])
    assert ledger.ids == ["a", "b", "c"]
    with pytest.raises(InputError, match=r"client \[\] is not in the roster"):
        ledger.row([])


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (["d", "a"], "client 'a' is in the roster already"),
        (["d", "d"], "client 'd' is in the roster already"),
        (["d", ["e"]], r"a client id must be hashable, but \['e'\] is not"),
    ],
)
def test_bad_joiners_leave_nothing_changed(clients, words):
    ledger = filled()
    with pytest.raises(InputError, match=words):
        ledger.join(clients)
    assert ledger.ids == ["a", "b", "c"]
    assert ledger.columns["delay"].size == 3


def test_delays_are_estimates_near_what_was_observed():
    ledger = Ledger()
    ledger.join(range(20))
    ledger.fold([Outcome(client, seconds=10.0 * 1.3**client) for client in range(20)], step=0)
    seen = ledger.columns["delay"]
    assert (np.diff(seen) > 0).all()
    np.testing.assert_allclose(seen, 10.0 * 1.3 ** np.arange(20), rtol=0.4)


def test_new_delays_move_the_estimate_and_old_ones_stay_in_it():
    ledger = filled()
    before = ledger.columns["delay"][0]
    for step in range(8, 11):
        ledger.fold([Outcome("a", seconds=13.0)], step=step)
        after = ledger.columns["delay"][0]
        assert before < after < 15.0
        before = after


def test_cut_off_means_at_least_that_long():
    ledger = filled()
    before = ledger.columns["delay"].copy()
    ledger.fold([Outcome("a", seconds=40.0, finished=False)], step=8)
    assert ledger.columns["delay"][0] > before[0]
    ledger.fold([Outcome("c", seconds=0.5, finished=False)], step=8)
    assert ledger.columns["delay"][2] == pytest.approx(before[2], rel=0.05), "given up early: nothing was learnt"
    assert ledger.columns["failures"].tolist() == [1, 0, 1]
    assert ledger.columns["participations"].tolist() == [1, 1, 1]


def test_a_first_cut_is_a_first_estimate_of_at_least_that_long():
    ledger = Ledger()
    ledger.join(["a"])
    ledger.fold([Outcome("a", seconds=40.0, finished=False)], step=0)
    assert ledger.columns["delay"][0] >= 40.0


def test_a_failure_without_seconds_teaches_nothing_of_delays():
    ledger = filled()
    before = ledger.columns["delay"].copy()
    ledger.fold([Outcome("a", finished=False)], step=8)
    np.testing.assert_array_equal(ledger.columns["delay"], before)
    assert ledger.columns["failures"].tolist() == [1, 0, 0]


def test_without_learning_only_the_hosts_word_counts():
    ledger = Ledger(learn_delays=False)
    ledger.join(["a", "b"])
    ledger.set_delays(np.array([0, 1]), [3.0, 4.0])
    ledger.fold([Outcome("a", seconds=99.0)], step=0)
    assert ledger.columns["delay"].tolist() == [3.0, 4.0]


def test_what_is_not_reported_stays_as_it_was():
    ledger = filled()
    ledger.fold([Outcome("a", seconds=10.0)], step=9)
    assert ledger.columns["loss"][0] == 0.0
    assert ledger.columns["loss_step"][0] == 7
    assert ledger.columns["samples"][0] == 5.0
    np.testing.assert_array_equal(ledger.tables["updates"][0], np.ones(4))


BAD = [
    ({"seconds": math.nan}, "client 'a' finished, but its delay is missing"),
    ({"seconds": -1.0}, "the delay of client 'a' must be a finite number of seconds, at least 0, but it is -1.0"),
    ({"seconds": math.inf}, "the delay of client 'a' .* it is inf"),
    ({"seconds": None}, "the seconds of client 'a' must be a number, but None came"),
    ({"seconds": "soon"}, "the seconds of client 'a' must be a number"),
    ({"loss": math.inf}, "the loss of client 'a' must be finite, but inf came: training diverged"),
    ({"loss": "low"}, "the loss of client 'a' must be a number"),
    ({"samples": -3}, "the samples of client 'a' must be a count of at least 0, but -3 came"),
    ({"samples": math.inf}, "the samples of client 'a' must be a count"),
    ({"moment": np.ones((2, 4))}, "the moment of client 'a' has 4 features, but those of other clients have 3"),
    ({"moment": np.ones(3)}, r"the moment factor of client 'a' must have 2 axes, but an array of shape \(3,\)"),
    ({"moment": np.full((1, 3), math.nan)}, r"the moment factor of client 'a' must be finite, but entry \(0, 0\)"),
    ({"moment": np.ones((2, 0))}, "the moment factor of client 'a' has no columns"),
    ({"update": np.ones(5)}, "the update sketch of client 'a' has 5 entries, but those of other clients have 4"),
    ({"update": np.full(4, math.inf)}, "the update sketch of client 'a' must be finite"),
]


@pytest.mark.parametrize(("fault", "words"), BAD)
def test_bad_outcomes_are_refused_by_name(fault, words):
    with pytest.raises(InputError, match=words):
        filled().check([Outcome("b", seconds=1.0), Outcome("a", **({"seconds": 1.0} | fault))])


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("moment", np.ones((2, 0)), None),
        ("moment", np.ones((1, 2)), np.ones((1, 3))),
        ("update", np.ones(2), np.ones(3)),
    ],
)
def test_widths_must_agree_within_the_first_report_too(field, first, second):
    ledger = Ledger()
    ledger.join(["a", "b"])
    with pytest.raises(InputError, match="client 'a'" if second is None else "client 'b'.* other clients have 2"):
        ledger.check([Outcome("a", seconds=1.0, **{field: first}), Outcome("b", seconds=1.0, **{field: second})])


def test_labels_come_all_or_none():
    ledger = Ledger()
    ledger.join(["a", "b"])
    for bad in ([[1, 2], [3, -1]], [[1, 2], [3, math.nan]]):
        with pytest.raises(InputError, match="the label histogram of client 'b' must hold counts of at least 0, but"):
            ledger.set_labels(np.arange(2), bad)
        assert "labels" not in ledger.tables
    with pytest.raises(InputError, match="label histograms must be numbers"):
        ledger.set_labels(np.arange(2), [[1, 2], [3]])
    ledger.set_labels(np.array([0]), [[1, 2, 3]])
    with pytest.raises(InputError, match="client 'b' has 2 entries, but those of other clients have 3"):
        ledger.set_labels(np.array([1]), [[1, 2]])


def loaded(ids, arrays):
    ledger = Ledger()
    ledger.load(ids, arrays)
    return ledger


def test_a_ledger_comes_back_from_its_arrays():
    ledger = filled()
    ledger.join(["d"])
    back = loaded(ledger.ids, ledger.arrays())
    assert back.ids == ledger.ids
    for name, array in ledger.arrays().items():
        np.testing.assert_array_equal(back.arrays()[name], array, err_msg=name)
    for book in (ledger, back):
        book.fold([Outcome("a", seconds=30.0), Outcome("d", seconds=5.0)], step=9)
    np.testing.assert_array_equal(back.columns["delay"], ledger.columns["delay"])


@pytest.mark.parametrize("name", [*filled().arrays()])
def test_saved_arrays_of_another_length_are_refused(name):
    arrays = filled().arrays()
    if name == "delays/noise":
        del arrays[name]
    elif name == "moments/factors":
        arrays[name] = arrays[name][:-1]
    else:
        arrays[name] = arrays[name][:-1] if name != "moments/ranks" else np.append(arrays[name], -1.0)
    with pytest.raises(InputError, match=r"saved (ledger|ranks|factors)"):
        loaded(["a", "b", "c"], arrays)
