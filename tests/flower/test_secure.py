"""SecAgg+ with Flower's own protocol: real masks between real ClientApps, in one process."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from fedpace._base.errors import InputError

pytest.importorskip("flwr")

from flower_grid import Tools
from flwr.client.mod import secaggplus_mod

from fedpace.flower.mods import report_mod
from fedpace.flower.secure import SecureRounds, secure_mod

NODES = 10
pytestmark = pytest.mark.usefixtures("flower")


class Network(Tools.grid):
    """Messages are copied, as a network does, and the replies are kept."""

    def __init__(self):
        super().__init__()
        self.received = []

    def push_messages(self, messages):
        copies = list(messages)
        for message in copies:
            message.content = deepcopy(message.content)
        return super().push_messages(copies)

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        self.received += found
        return found


def features(message, context):
    return Tools.rows(int(context.node_config["partition-id"]))


def federation(*, dying=(), seconds=None):
    """Return a grid of nodes that train toward their own targets; those in `dying` fail in their second training."""
    grid, trained = Network(), {}

    def fail(node):
        def check(message, context):
            trained[node] = trained.get(node, 0) + 1
            if node in dying and trained[node] == 2:
                raise RuntimeError("killed while it trains")

        return check

    for node in range(1, NODES + 1):
        delay = (lambda message, context, measured, node=node: float(node)) if seconds is None else seconds
        mods = [secaggplus_mod, secure_mod, report_mod(features=features, transfer=False, delay=delay)]
        app = Tools.app(mods, target=float(node), fail=fail(node))
        grid.add(node, app, **{"partition-id": node})
    return grid, trained


def seen_by_the_server(grid):
    """Return all arrays in replies, as the server got them."""
    return [record for message in grid.received for record in message.content.array_records.values()]


def test_a_round_of_everybody_is_the_mean_of_all_models():
    from fedpace import make_selector, make_server

    grid, _ = federation()
    secure = SecureRounds(make_selector("random", k=NODES), server=make_server("average"), minimum=4)
    found = secure.start(grid, Tools.arrays([1.0, -2.0], [[0.5]]), rounds=1)
    start, mean = np.array([1.0, -2.0]), 5.5
    assert np.allclose(found["w0"].numpy(), start + 0.3 * (mean - start), atol=1e-4)
    assert np.allclose(found["w1"].numpy(), 0.5 + 0.3 * (mean - 0.5), atol=1e-4)
    assert secure.history[0]["failed"] == []
    secure.start(grid, found, rounds=2)
    assert len(secure.history) == 2


def test_pace_runs_and_the_server_sees_no_model_of_a_node():
    grid, _ = federation()
    secure = SecureRounds("pace", minimum=4, clipping_range=16.0)
    secure.start(grid, Tools.arrays([1.0, -2.0]), rounds=3)
    assert secure.rule.name == "nesterov"
    assert len(secure.history) == 3
    assert all(entry["moved"] for entry in secure.history)
    assert all(len(entry["clients"]) >= 4 for entry in secure.history)
    assert all(len(record) == 0 for record in seen_by_the_server(grid)), "models come masked, in another record"
    assert not secure.coordinator.ledger.tables.get("updates")
    assert secure.coordinator.ledger.moments.known.all()


def test_masked_models_look_random():
    from flwr.common import bytes_to_ndarray

    grid, _ = federation()
    SecureRounds("pace", minimum=4).start(grid, Tools.arrays(np.ones(200)), rounds=1)
    masked = [
        bytes_to_ndarray(part)
        for message in grid.received
        for config in message.content.config_records.values()
        for part in config.get("masked_params", [])
    ]
    long = [vector for vector in masked if vector.size == 200]
    assert len(long) == NODES
    # All entries of a node's model are equal; what it sends is spread over the whole range.
    assert min(np.std(vector.astype(np.float64)) for vector in long) > 2**32 / 12**0.5 / 1.5


def test_a_node_that_dies_while_it_trains_drops_out():
    from fedpace import make_selector, make_server

    grid, _ = federation(dying={3})
    secure = SecureRounds(make_selector("random", k=NODES), server=make_server("average"), minimum=4)
    found = secure.start(grid, Tools.arrays([0.0]), rounds=2)
    assert secure.history[1]["failed"] == [3]
    first = 0.3 * 5.5
    others = np.mean([node for node in range(1, NODES + 1) if node != 3])
    assert found["w0"].numpy()[0] == pytest.approx(first + 0.3 * (others - first), abs=2e-4)


def test_a_node_that_is_dead_at_the_start_costs_one_round():
    from fedpace import make_selector

    grid, _ = federation()
    grid.dead = {2}
    secure = SecureRounds(make_selector("random", k=8), minimum=4)
    secure.start(grid, Tools.arrays([0.0]), rounds=4)
    stopped = [entry for entry in secure.history if not entry["moved"]]
    assert len(secure.history) == 4
    assert len(stopped) <= 1
    assert all(2 in entry["clients"] for entry in stopped)


def test_schemes_without_rounds_are_refused():
    with pytest.raises(InputError, match="only in rounds: use pace"):
        SecureRounds("fedbuff")
    with pytest.raises(InputError, match="does not work with aggregation = 'sums'"):
        SecureRounds("divfl")


def test_a_restarted_server_continues_after_the_last_round(tmp_path):
    options = {"minimum": 4, "state": tmp_path, "seed": 3}
    first, second = SecureRounds("pace", **options), None
    model = first.start(federation()[0], Tools.arrays([0.0, 0.0]), rounds=2)
    second = SecureRounds("pace", **options)
    assert second.coordinator.step == 2
    assert second.history == first.history
    found = second.start(federation()[0], Tools.arrays([9.0, 9.0]), rounds=2)
    assert np.array_equal(found["w0"].numpy(), model["w0"].numpy()), "the saved model, not the initial one"
    whole = SecureRounds("pace", minimum=4, seed=3).start(federation()[0], Tools.arrays([0.0, 0.0]), rounds=4)
    later = second.start(federation()[0], found, rounds=4)
    assert len(second.history) == 4
    assert np.allclose(later["w0"].numpy(), whole["w0"].numpy(), atol=0.2)
    assert len(list(tmp_path.glob("round-*"))) == 1


def test_noise_in_rounds_and_the_end_of_the_budgets():
    pytest.importorskip("dp_accounting")
    from fedpace import TrainingPrivacy, make_selector

    private = TrainingPrivacy("sums", minimum=4, epsilon=4.0, clip=0.25, releases=2)
    secure = SecureRounds(make_selector("random", k=NODES), minimum=4, privacy=private)
    found = secure.start(federation()[0], Tools.arrays(np.zeros(400)), rounds=5)
    assert secure.coordinator.step == 2, "two releases, and the budgets are spent"
    assert secure.budget.epsilon(1) == pytest.approx(4.0, rel=1e-6)
    moved = found["w0"].numpy()
    expected = secure.budget.multiplier * 0.25 / NODES
    assert 0.5 * expected < np.std(moved) < 4 * expected
