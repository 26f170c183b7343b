"""How much memory a step of a live server takes: every answer once, and not again as a vector."""

import tracemalloc

import numpy as np
import pytest

from fedpace import Coordinator, Outcome, Settings, make_selector, make_server
from fedpace.hosting.shared_model import SharedModel

PARAMETERS, CLIENTS = 600_000, 12
MODEL = 4 * PARAMETERS


def due_step():
    """A step in which all clients have answered."""
    coordinator = Coordinator(make_selector("random", k=CLIENTS), Settings(seed=0))
    coordinator.join(range(CLIENTS))
    for task in coordinator.due(0.0).tasks:
        coordinator.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    return coordinator, coordinator.due(1.0).step


@pytest.mark.parametrize("consume", [True, False])
@pytest.mark.parametrize("rule", ["average", "memory-corrected"])
def test_answers_are_held_once(rule, consume):
    coordinator, step = due_step()
    half = PARAMETERS // 2
    start = {"a": np.zeros(half, np.float32), "b": np.zeros(half, np.float32), "n": np.array(3)}
    shared = SharedModel(start, make_server(rule))
    tracemalloc.start()
    trained = {
        task.id: {"a": np.full(half, place, np.float32), "b": np.ones(half, np.float32), "n": np.array(5)}
        for place, (task, _) in enumerate(step.answers)
    }
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    shared.apply(coordinator, step, trained, consume=consume)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert before >= CLIENTS * MODEL
    more = (peak - before) / MODEL
    own = 9 if rule == "average" else 13 + CLIENTS  # the rule's own vectors; float32 rows of the clients
    assert more < own if consume else more > CLIENTS
    np.testing.assert_allclose(shared.arrays["a"], np.mean(range(CLIENTS)), rtol=1e-6)
    np.testing.assert_allclose(shared.arrays["b"], 1.0, rtol=1e-6)
    assert shared.arrays["n"] == 5
    assert all(("a" in model) is not consume for model in trained.values()), "parameters are given up, buffers kept"
