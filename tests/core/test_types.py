"""Every type of the contract is frozen, and every array in it is a read-only copy."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedpace import Cohort, Diagnostics, Need, Probe, Report, Scheme, Selection, Session, Stateless, View
from fedpace._base.checks import array_fields
from fedpace._base.errors import InputError
from fedpace.core.types import configuration
from fedpace.selectors.random import Random
from fedpace.testing import check_selector


def make_view(**changes):
    fields = {
        "step": 0,
        "now": 0.0,
        "available": np.array([True, False, True]),
        "share": np.full(3, 1 / 3),
        "delay": np.array([1.0, 2.0, 3.0]),
        "loss": np.array([math.nan, 1.0, 2.0]),
        "loss_step": np.array([-1, 0, 0]),
        "participations": np.array([0, 1, 1]),
        "labels": np.ones((3, 2)),
        "updates": np.zeros((3, 4)),
    }
    return View(**(fields | changes))


def make_report():
    one = np.ones(2)
    return Report(
        step=0,
        now=1.0,
        clients=np.array([0, 1]),
        finished=np.array([True, False]),
        seconds=one.copy(),
        loss=one.copy(),
        samples=one.copy(),
        weights=one / 2,
        updates=np.ones((2, 3)),
    )


MADE = {
    "view": (make_view, 8),
    "report": (make_report, 7),
    "cohort": (lambda: Cohort(np.array([0, 1]), np.array([0.5, 0.5])), 2),
    "probe": (lambda: Probe(np.array([0, 1])), 1),
    "selection": (lambda: Selection(0, ("a",), np.array([1.0]), "average", math.inf, Diagnostics()), 1),
}


@pytest.mark.parametrize("kind", MADE)
def test_every_array_is_read_only_and_every_field_frozen(kind):
    make, expected = MADE[kind]
    instance = make()
    arrays = [value for value in vars(instance).values() if isinstance(value, np.ndarray)]
    assert len(arrays) == expected
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    for field in dataclasses.fields(instance):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(instance, field.name, None)


def test_arrays_are_copies():
    delay = np.array([1.0, 2.0, 3.0])
    view = make_view(delay=delay)
    delay[0] = 99.0
    assert view.delay[0] == 1.0
    weights = np.array([1.0])
    cohort = Cohort(np.array([0]), weights)
    weights[0] = 0.3
    assert cohort.weights[0] == 1.0


def test_arrays_have_one_type_whatever_came():
    view = make_view(delay=[1, 2, 3], available=[1, 0, 1])
    assert view.delay.dtype == np.float64
    assert view.available.dtype == np.bool_
    cohort = Cohort([2, 0], [1, 0])
    assert cohort.clients.dtype == np.int64
    assert cohort.weights.dtype == np.float64


@pytest.mark.parametrize("rows", [[True, False, True], [0.0, 1.0], [0.7], ["0"]])
@pytest.mark.parametrize("make", [lambda rows: Cohort(rows, np.ones(len(rows))), Probe], ids=["cohort", "probe"])
def test_a_mask_or_fractions_are_no_rows(make, rows):
    """NumPy would turn a mask into the rows 0 and 1 without a word."""
    with pytest.raises(InputError, match="clients must be rows, whole numbers"):
        make(rows)


def test_missing_arrays_stay_missing():
    view = make_view(labels=None, updates=None)
    assert view.labels is None
    assert view.updates is None
    assert view.moments is None


def test_a_view_counts_clients_and_candidates():
    view = make_view()
    assert view.clients == 3
    assert view.candidates.tolist() == [0, 2]


def test_diagnostics_keep_their_own_copies():
    facts, reasons = {"c": 0.5}, {0: "why"}
    why = Diagnostics(facts=facts, reasons=reasons)
    facts["c"] = 0.7
    reasons.clear()
    assert why.facts == {"c": 0.5}
    assert why.reasons == {0: "why"}


def test_the_configuration_is_the_fields():
    plain = {"fedexp_exponent": 0.0, "momentum": False, "overcommit": 1.0}
    assert configuration(Random(k=3, variant="md")) == {"k": 3, "variant": "md", **plain}


def test_a_scheme_that_says_too_little_is_told_what_to_derive_from():
    class Bare:
        name = "bare"
        needs: frozenset[Need] = frozenset()

    with pytest.raises(InputError, match=r"Bare says nothing of uses.*derive it from Scheme or Stateless"):
        Session(Bare())


def test_array_fields_are_frozen_by_their_declared_types():
    assert array_fields(Cohort) == {"clients": np.int64, "weights": np.float64, "work": np.float64}
    assert array_fields(View)["updates"] is np.float64
    assert array_fields(View)["available"] is np.bool_
    assert "moments" not in array_fields(View)


def test_a_scheme_that_lacks_a_method_is_told_which():
    """Whoever takes Scheme where Stateless was meant gets a sentence, and not an AttributeError from within."""

    @dataclass(frozen=True)
    class Forgetful(Scheme):
        name: ClassVar[str] = "forgetful"
        needs: ClassVar[frozenset[Need]] = frozenset()

        def select(self, state, view, rng):
            return Cohort(view.candidates[:1], np.ones(1)), state

    with pytest.raises(InputError, match=r"Forgetful has no init\(\) and no observe\(\): .* fedpace\.Stateless"):
        Session(Forgetful(), seed=0)
    with pytest.raises(InputError, match=r"Forgetful has no init\(\)"):
        check_selector(Forgetful())

    @dataclass(frozen=True)
    class Idle(Stateless):
        name: ClassVar[str] = "idle"
        needs: ClassVar[frozenset[Need]] = frozenset()

    with pytest.raises(InputError, match=r"Idle has no select\(\)"):
        Session(Idle(), seed=0)
