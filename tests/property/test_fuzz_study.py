"""The same for what needs torch, for live servers, and for what decides whom to trust (`test_fuzz.py`)."""

from __future__ import annotations

import dataclasses
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

import fedpace
from fedpace import Settings, make_selector
from fedpace.delays.availability import Availability
from fedpace.hosting.live_server import Host, Server
from fedpace.planning import plan_cohort
from fedpace.sim.clock import Clock
from fedpace.sim.fleet import Fleet
from fedpace.sim.stopping import Stop
from fedpace.sim.training import Training
from fedpace.trust import Trust
from fedpace.trust.robust import ROBUST, make_robust

sys.path.insert(0, str(Path(__file__).parent))
from fuzzing import fuzzed
from junk import arrays, floats, junk, listed, mostly, one_of, pick, raw, scalars, table, text

torch = pytest.importorskip("torch")

MOMENTS = np.array([np.eye(2), 2 * np.eye(2), np.ones((2, 2))])


@fuzzed(
    "plan_cohort",
    mostly([1.0, 2.0, 3.0], [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], of=one_of(listed(floats), junk)),
    mostly(None, MOMENTS, of=one_of(arrays, junk)),
    table(pick(["names", "noise", "ridge", "max_clients"]), junk),
)
def test_plan(delay, moments, options):
    found = plan_cohort(delay, moments, **options)
    assert abs(sum(found.weights) - 1) < 1e-9


def options_of(*classes):
    """Return a maker of a class, and of junk for some of its options."""

    def make(rng):
        kind = rng.choice(classes)
        return kind, table(pick([item.name for item in dataclasses.fields(kind)]), scalars)(rng)

    return make


@fuzzed("options of simulations", options_of(Fleet, Training, Clock, Stop, Availability))
def test_options(drawn):
    kind, options = drawn
    kind(**options)


PAIRS = [(np.eye(3), [0, 1, 0]), (np.ones((2, 3)), [1, 1]), (np.zeros((4, 3)), [0, 1, 1, 0])]
GOOD = {"clients": PAIRS, "test": PAIRS[0], "model": "softmax", "selector": "random(k=1)"}
ARGUMENTS = [
    "data", "model", "delays", "selector", "clients", "test", "training", "task", "head", "fleet", "availability",
    "clock", "engine", "server", "seed",
]  # fmt: skip


@fuzzed("simulate", table(pick(ARGUMENTS), one_of(junk, listed(mostly(*PAIRS, of=one_of(arrays, junk))))))
def test_simulate(changed):
    with np.errstate(over="ignore", invalid="ignore"):  # numbers beyond single precision
        fedpace.simulate(**(GOOD | changed)).close()


words = one_of(text(6), raw(), arrays, listed(one_of(text(), arrays)), pick([None, object(), {}, 1j]))


@fuzzed("compare", table(pick([*ARGUMENTS, "schemes", "target", "seeds", "rounds", "lr", "name", "stop"]), words))
def test_compare(changed):
    good = {"clients": PAIRS, "test": PAIRS[0], "model": "softmax", "schemes": ["random(k=1)"]}
    how = {"rounds": 1, "seeds": 1, "epochs": 1, "progress": False}
    fedpace.compare(
        **(good | how | {("schemes" if key == "selector" else key): changed[key] for key in changed if key != "seed"})
    )


HOST = Host("fuzz", logging.getLogger("fuzz"), {})


@fuzzed(
    "servers: options",
    mostly("random", "pace-async", of=pick(["pace", "fedbuff", "oort"])),
    table(pick(["clock", "rule", "sketch", "loss_key", "clip", "weight_rate", "robust", "forget_seconds"]), scalars),
)
def test_server(scheme, options):
    bounds = {name: options.pop(name) for name in ("clip", "weight_rate") if name in options}
    settings = Settings(**bounds)
    Server(make_selector(scheme), settings, HOST, **options)


def numbers(rng):
    """Return a table of numbers that a ledger may hold: finite, and neither empty nor beyond 1e70."""
    rows, columns = rng.choice([1, 3, 12, 20, 40]), rng.randint(1, 4)
    way = rng.random()
    drawn = np.array([[rng.gauss(0, 1) for _ in range(columns)] for _ in range(rows)])
    if way < 0.2:
        drawn[:] = 0.0
    elif way < 0.5:
        drawn[rng.randrange(rows)] *= rng.choice([0.0, -1.0, 1e-70, 1e70, 1e35])
    elif way < 0.7:
        drawn *= rng.choice([1e-70, 1e70, 1e-9])
    elif way < 0.8:
        drawn[rows // 2 :] = drawn[0]
    return drawn


@fuzzed("robust rules", pick(sorted(ROBUST)), numbers)
def test_robust_rules(name, updates):
    count, width = updates.shape
    zero = np.zeros(width)
    found = make_robust(name).combine(
        updates, np.full(count, 1 / count), center=zero, trusted=updates[0], rng=np.random.default_rng(0)
    )
    assert np.isfinite(found.step).all()
    assert (found.weights >= 0).all()


@fuzzed("clip_factors", listed(floats, 8), pick(["update", "sketch", "running_var"]), pick([0, 1, 10**9]))
def test_clip_factors(lengths, kind, size):
    trust = Trust()
    trust.append(range(8))
    for _ in range(2):
        factors = trust.clip_factors(range(len(lengths)), np.abs(lengths), kind, size=size)
        assert ((factors >= 0) & (factors <= 1)).all()
        assert ((factors > 0) == np.isfinite(lengths)).all()
        assert all(np.isfinite(known).all() for known in trust.longest.values())


@fuzzed(
    "trust: what was saved",
    pick(["refusals", "rest_until", "weight_used", "moment_size", "longest/update", "longest/other"]),
    arrays,
)
def test_saved(name, array):
    trust = Trust()
    trust.append(range(3))
    trust.load({**trust.arrays(), name: array}, 3)
    trust.clip_factors([0, 1, 2], [1.0, 2.0, 3.0])
    trust.admitted(np.ones(3, dtype=np.bool_), 0)
    trust.remove(np.array([0]), [0])
