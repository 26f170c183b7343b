"""A policy without rounds on Flower: clients begin anew as soon as they answer, and stale answers count less."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace import Need
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Traits
from fedpace.flower import PacedServer, report_mod

TARGETS = [1.0, 4.0, -2.0, 7.0]
SECONDS = [1.0, 1.7, 2.9, 11.3]
BUFFER, STEPS = 2, 9


@dataclass(frozen=True)
class Buffered(Traits):
    """FedBuff (Nguyen et al. 2022): everybody is busy, and every two answers make a step."""

    name: ClassVar[str] = "buffered"
    needs: ClassVar[frozenset[Need]] = frozenset()
    rounds: ClassVar[bool] = False

    def init(self):
        return None

    def probe(self, state, view, rng):
        return None

    def decide(self, state, view, rng):
        hand, apply, start = view.in_hand, None, view.candidates
        if len(hand) >= BUFFER:
            apply = Apply(hand.ids, (1.0 + view.step - hand.step) ** -0.5 / BUFFER, "delta")
        wait = Wait(answers=1 if apply else len(hand) + 1)
        return Move(start, np.zeros(start.size), apply=apply, wait=wait, mode="delta"), None

    def observe(self, state, report):
        return None


def by_hand():
    """The same, of one number."""
    model, step, hand, models, lags = 0.0, 0, [], [], []
    working = [(seconds, client, 0.0, 0) for client, seconds in enumerate(SECONDS)]
    heapq.heapify(working)
    while step < STEPS:
        now, client, base, version = heapq.heappop(working)
        hand.append((0.3 * (TARGETS[client] - base), step - version))
        if len(hand) == BUFFER:
            model += sum((1.0 + lag) ** -0.5 / BUFFER * move for move, lag in hand)
            step, lags, hand = step + 1, [*lags, *(lag for _, lag in hand)], []
            models.append(model)
        heapq.heappush(working, (now + SECONDS[client], client, model, step))
    return models, lags


def test_fedbuff_by_hand(flower):
    grid = flower.grid()
    for client, target in enumerate(TARGETS):
        mod = report_mod(delay=lambda message, context, measured: SECONDS[context.node_config["partition-id"]])
        grid.add(10 + client, flower.app([mod], target=target), **{"partition-id": client})
    found = []
    PacedServer(Buffered(), clock="reported").start(
        grid,
        flower.arrays([0.0]),
        STEPS,
        evaluate_fn=lambda number, arrays: found.append(float(arrays["w0"].numpy()[0])),
    )
    expected, lags = by_hand()
    assert max(lags) > 1, "some answers are stale"
    np.testing.assert_allclose(found, [0.0, *expected], rtol=1e-5)
