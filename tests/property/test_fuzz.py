"""Anything at all into every public surface: what comes out is a result, or a FedpaceError; never anything else."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path

import numpy as np

import fedpace
from fedpace import (
    Coordinator,
    FedpaceError,
    Outcome,
    Session,
    Settings,
    make_selector,
    numerics,
    registry,
)
from fedpace.config import parse_experiment
from fedpace.hosting.replies import Raw, Reply, parse
from fedpace.hosting.shared_model import SharedModel
from fedpace.moments import MomentBank, compress, factor_from_features, private_moment

sys.path.insert(0, str(Path(__file__).parent))
from federation import Federation
from fuzzing import fuzzed
from junk import arrays, floats, json_value, junk, listed, mostly, one_of, pick, scalars, table, text, together
from steps import apply_answers


def roster(scheme="random", **options):
    session = Session(make_selector(scheme, **options), seed=1)
    session.join(range(6), samples=[1.0] * 6, labels=np.ones((6, 2)))
    return session


@fuzzed("Session.join", mostly(["a", "b"], [1, 2]), mostly([1, 2.5]), mostly([1.0, 0]), mostly([[1, 2], [0, 1]]))
def test_join(ids, samples, delays, labels):
    session = Session(make_selector("random", k=1))
    try:
        session.join(ids, samples=samples, delays=delays, labels=labels)
    except FedpaceError:
        assert len(session) == 0, "who was refused must not be in"
        raise
    if len(session):
        session.select()


@fuzzed("Session.select", mostly(0.0, 3), mostly(None, [0, 1, 2], {4, 5}))
def test_select(now, available):
    session = roster(k=2)
    session.select(now=now, available=available)


FIELDS = ["seconds", "finished", "loss", "samples", "moment", "update", "measured"]


@fuzzed(
    "Session.observe",
    pick(["pace", "oort", "delayhet-submodular"]),
    table(pick(FIELDS), junk, 3),
)
def test_observe(scheme, told):
    session = roster(scheme)
    rng = fedpace.stream(0, "fuzz")
    for _ in range(3):
        outcomes = []
        for client in session.select().clients:
            good = {
                "seconds": 1.0 + client,
                "loss": 1.0,
                "moment": rng.normal(size=(4, 3)),
                "update": rng.normal(size=4),
            }
            outcomes.append(Outcome(client, **(good | (told if client == 0 else {}))))
        session.observe(outcomes)


@fuzzed("Session.observe, the list", mostly("good", "one twice", "one too few"))
def test_observe_list(outcomes):
    session = roster(k=2)
    good = [Outcome(client, seconds=1.0) for client in session.select().clients]
    made = {"good": good, "one twice": [*good, good[0]], "one too few": good[1:]}
    session.observe(made.get(outcomes, outcomes) if isinstance(outcomes, str) else outcomes)
    assert session.step == 1


@fuzzed(
    "Coordinator.receive", mostly(0, 1, 2.0), mostly(Outcome(0, seconds=1.0), Outcome(1, seconds=1.0)), mostly(0.0, 5)
)
def test_receive(task, answer, now):
    coordinator = Coordinator(make_selector("random", k=2))
    coordinator.join(range(4))
    tasks = coordinator.due(0.0).tasks
    taken = False
    if not callable(answer):
        for named in (task, tasks[0].id):
            try:
                taken |= coordinator.receive(named, answer, now) and named == tasks[0].id
            except FedpaceError:
                continue
    assert coordinator.receive(tasks[0].id, Outcome(tasks[0].client, seconds=1.0)) is not taken
    coordinator.lost(tasks[1].id, now, seconds=task)


@fuzzed("federations with hostile clients", lambda rng: rng)
def test_federations(rng):
    federation = Federation(rng)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fedpace._base.errors.FedpaceWarning)  # clients that say nothing are many
            federation.play()
    except FedpaceError as problem:
        raise AssertionError(f"a client stopped {federation.made.policy.name}: {problem}") from problem


@fuzzed("Settings", table(pick([field.name for field in dataclasses.fields(Settings)]), junk))
def test_settings(options):
    Settings(**options)


def with_options(catalogue):
    """Return a maker of a registered name, and junk for some of its options."""
    names = list(catalogue.names())

    def make(rng):
        name = rng.choice(names)
        fields = [item.name for item in dataclasses.fields(catalogue[name])]
        return name, table(pick(fields), scalars)(rng) if fields else {}

    return make


@fuzzed("make_selector", with_options(registry.selectors))
def test_selectors(drawn):
    name, options = drawn
    registry.selectors.make(name, **options)


@fuzzed("make_server", with_options(registry.servers))
def test_servers(drawn):
    name, options = drawn
    registry.servers.make(name, **options)


@fuzzed("make delays", with_options(registry.delays))
def test_delays(drawn):
    name, options = drawn
    registry.delays.make(name, **options)


NOTE = ["name", "seconds", "compute", "samples", "moment", "shape", "update", "labels", "x"]
SENT = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(3)}


@fuzzed(
    "replies of clients",
    mostly({}, {"seconds": 1.0, "labels": [1, 2]}, of=one_of(table(pick(NOTE), junk, 4), junk)),
    mostly({"loss": 1.0}, {}, of=one_of(table(pick(["loss", "train_loss", "x"]), junk), junk)),
    mostly(10),
    mostly(SENT, of=one_of(table(pick(["w", "b", "c"]), arrays, 3), junk)),
)
def test_replies(note, metrics, samples, model):
    found = parse(lambda: Raw(note, metrics, samples, model), SENT)
    assert isinstance(found, Reply | str), "a value or a reason, never an exception"
    if isinstance(found, str):
        raise fedpace.FedpaceError(found)
    assert all(np.isfinite(array).all() for array in found.model.values())


@fuzzed(
    "SharedModel.apply",
    listed(together(floats, lambda rng: {"w": arrays(rng), "b": arrays(rng)})),
    pick(["average", "delta"]),
)
def test_shared_model(answers, mode):
    replies = [(weight, parse(lambda model=model: Raw(model=model), SENT)) for weight, model in answers]
    usable = [(abs(weight), reply.model) for weight, reply in replies if isinstance(reply, Reply) and 0 <= weight < 1e6]
    stepped = apply_answers(SharedModel(SENT, registry.servers.make("average")), usable, mode)
    assert all(stepped[key].shape == SENT[key].shape for key in SENT)


MATRIX = [[0.0, 0.1, 0.2], [0.1, 0.0, 0.3], [0.2, 0.3, 0.0]]


@fuzzed("numerics.best_prefix", mostly(MATRIX), mostly([1.0, 2.0, 3.0], of=one_of(listed(floats), junk)))
def test_best_prefix(matrix, delays):
    numerics.best_prefix(matrix, delays)


@fuzzed("numerics.pairwise_heterogeneity", one_of(junk, listed(mostly(np.eye(2), np.ones((3, 2)), of=arrays))))
def test_heterogeneity(factors):
    numerics.pairwise_heterogeneity(factors)


@fuzzed(
    "numerics.expected_max",
    mostly([0.5, 0.5]),
    mostly([1.0, 2.0], of=one_of(listed(floats), junk)),
    mostly(1, 2, of=scalars),
)
def test_expected_max(p, delays, k):
    numerics.expected_max(p, delays, k)


@fuzzed("MomentBank", mostly(0, 1, 2), mostly(np.ones((3, 2)), of=arrays))
def test_bank(row, factor):
    bank = MomentBank(3)
    bank.put(0, np.eye(2))
    bank.put(1, 2 * np.eye(2))
    bank.put(row, factor)
    bank.directions(ridge=0.1)


@fuzzed("moments of features", mostly(np.eye(3), of=one_of(arrays, junk)), mostly(1, 3, of=scalars))
def test_moments(features, rank):
    compress(factor_from_features(features), rank)


@fuzzed("private_moment", mostly(np.eye(3), of=one_of(arrays, junk)), mostly(1.0, of=scalars), mostly(1e-5, of=scalars))
def test_private(features, epsilon, delta):
    private_moment(features, epsilon=epsilon, delta=delta, clip=1.0, seed=0)


TABLE = {
    "name": "e",
    "seeds": 1,
    "data": {"name": "quadratic"},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"lr": 0.1},
    "fleet": {"warmup": "full"},
    "clock": {"deadline": 3.0},
    "stop": {"target": 1.0},
    "selectors": [{"name": "random", "k": 2}],
}


@fuzzed("experiments", pick([*TABLE, "server", "x"]), text(8), json_value, pick([True, False]))
def test_experiments(part, key, value, whole):
    table = json.loads(json.dumps(TABLE))
    if whole or not isinstance(table.get(part), dict):
        table[part] = value
    else:
        table[part][key] = value
    parse_experiment(table, "fuzz")
