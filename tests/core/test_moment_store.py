"""A session that keeps moments elsewhere: the sketched bank of large fleets, under an unchanged scheme."""

from __future__ import annotations

import pytest

from fedpace._base.errors import InputError
from fedpace.core.session import Session
from fedpace.moments import MomentBank
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.testing import ToyFleet

pytest.importorskip("faiss")

CLIENTS = 30
SELECTOR = DelayhetSubmodular(ridge=0.1, target_heterogeneity=0.7)


def bank():
    return MomentBank.sketched(ridge=0.1, dimension=16, prototypes=20, pilot=10, seed=0)


def played(session, rounds):
    fleet = ToyFleet(CLIENTS, seed=4)
    return [(s.clients, s.weights.tolist()) for s in fleet.play(session, rounds)]


def test_the_same_scheme_runs_on_sketches_and_goes_on_after_a_restore(tmp_path):
    session = Session(SELECTOR, seed=4, moments=bank())
    ToyFleet(CLIENTS, seed=4).join(session, list(range(CLIENTS)))
    first = played(session, 2)
    assert all(0 < len(clients) < CLIENTS for clients, _ in first)
    session.save(tmp_path)
    restored = Session.restore(tmp_path, moments=bank())
    assert played(restored, 2) == played(session, 2)


def test_restoring_sketches_into_the_usual_bank_is_refused(tmp_path):
    session = Session(SELECTOR, seed=4, moments=bank())
    ToyFleet(CLIENTS, seed=4).join(session, list(range(CLIENTS)))
    played(session, 1)
    session.save(tmp_path)
    with pytest.raises(InputError, match="ranks"):
        Session.restore(tmp_path)
