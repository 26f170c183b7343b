"""Server rules with a table of clients, combined by a robust rule: one vote per client."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.registry import servers
from fedpace.core.server_rule import Answers, Source
from fedpace.trust.robust import make_robust


def median(rows, weights):
    zero = np.zeros(rows.shape[1])
    return make_robust("median").combine(rows, weights, center=zero, trusted=None, rng=np.random.default_rng(0))


def answers(clients, updates, combine):
    rows = tuple(np.array([float(update)]) for update in updates)
    weights = np.full(len(rows), 1 / len(rows))
    sources = tuple(Source(client, 0, 0.2) for client in clients)
    return Answers(weights @ np.array(rows), weights, rows=rows, sources=sources, combine=combine)


@pytest.mark.parametrize("name", ["client-means", "last-updates"])
@pytest.mark.parametrize("combine", [None, median])
def test_a_client_with_many_answers_has_one_vote(name, combine):
    rule = servers[name]()
    clients = ["a", "b", "c", "d", *["liar"] * 6]
    updates = [1, 1, 1, 1, *[9] * 6]
    model, _ = rule.apply(rule.init(np.zeros(1)), np.zeros(1), answers(clients, updates, combine))
    assert model[0] == pytest.approx(1.0 if combine else (4 + 9) / 5)


@pytest.mark.parametrize("name", ["client-means", "last-updates"])
def test_the_remembered_clients_vote_too(name):
    rule = servers[name]()
    _, state = rule.apply(rule.init(np.zeros(1)), np.zeros(1), answers("abcd", [1, 1, 1, 1], median))
    model, after = rule.apply(state, np.zeros(1), answers(["liar"], [9], median))
    assert model[0] == 1.0, "one against four that are remembered"
    assert "liar" not in after.clients, "what the rule left out is not remembered"
