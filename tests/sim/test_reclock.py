"""What is trained once and clocked under other delays is, bit for bit, what training under them gives."""

from __future__ import annotations

import dataclasses

import pytest

from fedpace import make_selector
from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.config import parse_experiment
from fedpace.delays.trace import TraceDelays
from fedpace.records.run import read_run, round_line
from fedpace.runner import Execution, Job, Plan, SharedData, clock_run, resume, run_one, run_plan
from fedpace.sim.reclock import depends_on_delays, reclock
from fedpace.sim.rounds import Simulation, virtual_time
from fedpace.sim.stopping import StopRule, run_until
from fedpace.testing import ContractError, check_selector

IGNORING = [name for name in registry.selectors.names() if make_selector(name).ignores_delays]
HARD = {
    "fleet": {"shares": "samples", "slow_rare": 0.7},
    "availability": {"on": 1.0, "off": 6.0, "crash": 0.2, "spread": 0.1},
    "clock": {"charge_warmup": True, "probe_fraction": 0.1},
}


def experiment(delays, name="random", **changes):
    table = {
        "name": "tiny",
        "data": {"name": "digits", "clients": 8},
        "model": {"name": "softmax"},
        "delays": {"name": delays},
        "training": {"epochs": 1, "lr": 0.1, "sketch": 16},
        "stop": {"max_rounds": 5},
        "selectors": [{"name": name, "k": 3}],
        "clock": {"charge_warmup": False},
    }
    fleet = {"warmup_wait": 1.0, **changes.pop("fleet", {})}  # whoever does not wait for all depends on delays
    return parse_experiment(table | changes | {"fleet": fleet}, "test")


DATA = SharedData(experiment("constant").data)


def played(chosen, seed=2):
    """Play an experiment in memory."""
    chosen = dataclasses.replace(chosen, data=DATA)
    simulation = Job(chosen, chosen.schemes[0], seed, None).simulation()
    stop_rule = StopRule(chosen.stop, chosen.direction, simulation.expected_delays)
    rounds = run_until(simulation.rounds(chosen.stop.evaluates), stop_rule)
    return simulation, list(rounds)


def lines(rounds):
    """Rounds as they are written, apart from what is known only where the models are at hand."""
    return [round_line(dataclasses.replace(current, by_speed=None)) for current in rounds]


def time_of(chosen, simulation, seed=2):
    return virtual_time(
        simulation.trainer.data,
        chosen.delays,
        fleet=chosen.fleet,
        availability=chosen.availability,
        clock=chosen.clock,
        model_bytes=simulation.trainer.message_bytes,
        seed=seed,
    )


def test_which_schemes_claim_it():
    assert {"random", "power-of-choice", "divfl", "clustered-sampling", "folb", "fed-cbs"} <= set(IGNORING)
    assert not {"oort", "flanp", "tifl", "fed-cs", "delayhet-submodular", "delayhet-sampling"} & set(IGNORING)


@pytest.mark.parametrize("name", IGNORING)
@pytest.mark.parametrize("options", [{}, HARD], ids=["plain", "hard"])
def test_clocked_is_trained(name, options):
    there, here = experiment("nycmesh", name, **options), experiment("synthetic", name, **options)
    _, trained = played(there)
    simulation, direct = played(here)
    clocked = list(reclock(trained, time_of(here, simulation)))
    assert [round_line(current) for current in clocked] == lines(direct)
    assert [current.clock for current in trained] != [current.clock for current in direct]


def test_a_warm_up_that_only_measures_lasts_as_long_as_its_slowest_client():
    changes = {"fleet": {"warmup_trains": False}, "clock": {"charge_warmup": True}}
    there, here = experiment("nycmesh", "divfl", **changes), experiment("synthetic", "divfl", **changes)
    _, trained = played(there)
    simulation, direct = played(here)
    assert len(direct[1].warmed) == 8
    clocked = list(reclock(trained, time_of(here, simulation)))
    assert [round_line(current) for current in clocked] == lines(direct)
    took = time_of(here, simulation).delays_at(0)[list(direct[1].warmed)]
    assert clocked[1].overhead == took.max() > took.min()


def test_a_recorded_run_is_clocked(tmp_path):
    here, there = experiment("nycmesh"), experiment("synthetic", clock={"charge_warmup": True})
    record = run_one(here, here.schemes[0], 0, tmp_path / "here")
    direct = run_one(there, there.schemes[0], 0, tmp_path / "there")
    clocked = clock_run(record, there)
    assert lines(clocked.rounds) == lines(direct.rounds)
    assert clocked.info.expected_delays == direct.info.expected_delays
    assert clocked.info.clocked_from == "nycmesh"
    assert lines(clock_run(clocked, here).rounds) == lines(record.rounds)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("oort", {}, "oort looks at delays or at time"),
        ("random", {"clock": {"deadline": 5.0}}, "the deadline of"),
        ("random", {"stop": {"max_seconds": 5.0}}, "max_seconds of"),
        ("random", {"fleet": {"delays": "observed"}}, "delays are estimated"),
        ("divfl", {"fleet": {"warmup": "lazy"}}, "clients that ride along"),
        ("random", {"fleet": {"warmup": "lazy"}}, None),
        ("fed-cbs", {"fleet": {"warmup": "lazy"}}, None),
        ("random", {"availability": {"crash": 0.5, "off": 2.0}}, None),
    ],
)
def test_what_depends_on_delays(name, changes, reason):
    chosen = experiment("synthetic", name, **changes)
    found = depends_on_delays(chosen.schemes[0].selector, fleet=chosen.fleet, clock=chosen.clock, stop=chosen.stop)
    assert (found is None) == (reason is None)
    assert reason is None or found.startswith(reason)


def test_over_selection_depends_on_delays():
    changes = {"selectors": [{"name": "random", "k": 3, "overcommit": 2.0}], "fleet": {"shares": "samples"}}
    rounds = [played(experiment(delays, **changes))[1][1:] for delays in ("synthetic", "lognormal")]
    for one, other in zip(*rounds, strict=True):
        assert sorted(one.clients) == sorted(other.clients), "the same are asked"
        assert (len(one.clients), len(one.failed), len(other.failed)) == (6, 3, 3)
    assert any(one.failed != other.failed for one, other in zip(*rounds, strict=True))
    chosen = experiment("synthetic", **changes)
    found = depends_on_delays(chosen.schemes[0].selector, fleet=chosen.fleet, clock=chosen.clock, stop=chosen.stop)
    assert found == "random looks at delays or at time"


def test_other_absences_are_refused():
    chosen = experiment("synthetic", availability={"crash": 0.5})
    simulation, rounds = played(chosen)
    with pytest.raises(InputError, match="clocked anew only under the same absences"):
        list(reclock(rounds, time_of(experiment("synthetic"), simulation)))


def test_a_trace_has_absences_of_its_own(tmp_path):
    lines = [f"{client},{step},1.5,{int(client < 5)}" for client in range(8) for step in range(3)]
    (tmp_path / "trace.csv").write_text("client,step,seconds,available\n" + "\n".join(lines) + "\n")
    plain = experiment("synthetic")
    trace = dataclasses.replace(plain, delays=TraceDelays(str(tmp_path / "trace.csv")))
    simulation, rounds = played(plain)
    with pytest.raises(InputError, match="absences of their own"):
        list(reclock(rounds, time_of(trace, simulation)))
    records = run_plan(Plan.under([plain, trace]), tmp_path / "runs")
    assert [record.info.clocked_from for record in records] == [None, None]
    assert all(client < 5 for current in records[1].rounds for client in current.clients)


# -- several delay models ----------------------------------------------------------------------------------


def several(**changes):
    selectors = [{"name": "random", "k": 3}, {"name": "flanp"}]
    return [experiment(name, selectors=selectors, seeds=2, **changes) for name in ("nycmesh", "synthetic", "uniform")]


def test_a_plan_of_several_delay_models_trains_what_ignores_delays_once(tmp_path, monkeypatch):
    trained = []
    real = Simulation.rounds
    monkeypatch.setattr(Simulation, "rounds", lambda self, *a: trained.append(self) or real(self, *a))
    records = run_plan(Plan.under(several()), tmp_path / "runs", execution=Execution(checkpoint_every=0.0))
    assert len(trained) == 2 * (1 + 3)
    assert len(records) == 12
    for chosen in several():
        for scheme in chosen.schemes:
            direct = run_one(chosen, scheme, 1, tmp_path / "direct" / chosen.delays.name / scheme.label)
            folder = tmp_path / "runs" / chosen.delays.name / scheme.label / "seed-1"
            alone = tmp_path / "direct" / chosen.delays.name / scheme.label
            assert lines(read_run(folder).rounds) == lines(direct.rounds)
            assert (folder / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()
            assert direct.info.status == "finished"


def test_a_plan_of_several_delay_models_resumes(tmp_path):
    whole = run_plan(Plan.under(several()), tmp_path / "whole")

    def stop(job, current):
        if job.title == "synthetic" and job.scheme.label == "random" and current.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(Plan.under(several()), tmp_path / "half", stop)
    assert [record.rounds for record in resume(tmp_path / "half")] == [record.rounds for record in whole]


@pytest.mark.parametrize("hold", [1, 12])
def test_a_target_that_is_held_sooner_or_later_under_other_delays(tmp_path, hold):
    stop = {"target": 0.5, "hold": hold, "max_rounds": 80}
    plan = Plan.under(several(stop=stop))
    records = run_plan(plan, tmp_path / "runs")
    lengths = set()
    for record in records:
        if record.info.label != "random":
            continue
        name = record.info.experiment["delays"]["name"]
        chosen = next(one for one in several(stop=stop) if one.delays.name == name)
        direct = run_one(chosen, chosen.schemes[0], record.info.seed, tmp_path / f"{name}-{record.info.seed}")
        assert record.info.status == direct.info.status == "reached"
        assert lines(record.rounds) == lines(direct.rounds)
        assert (record.reached.number, record.info.hold_every) == (direct.reached.number, direct.info.hold_every)
        lengths.add((record.info.seed, len(record.rounds)))
    assert (len(lengths) == 2) == (hold == 1), "with one instant a run ends where it is, whatever the clock says"


def test_plans_that_make_no_sense():
    with pytest.raises(InputError, match="each delay model can be named once"):
        Plan.under([experiment("synthetic"), experiment("synthetic")])
    with pytest.raises(InputError, match="may differ in their delays only"):
        Plan.under([experiment("synthetic"), experiment("nycmesh", stop={"max_rounds": 3})])


# -- the contract ------------------------------------------------------------------------------------------


def test_a_scheme_that_lies_about_it_is_found_out():
    class Liar(type(make_selector("flanp"))):
        ignores_delays = True

    with pytest.raises(ContractError, match="cannot ignore delays and need them"):
        check_selector(Liar())

    class Watcher(type(make_selector("random"))):
        ignores_delays = True

        def select(self, state, view, rng):
            cohort, state = super().select(state, view, rng)
            order = -1 if view.now % 2 < 1 else 1
            return dataclasses.replace(cohort, weights=cohort.weights[::order]), state

    check_selector(make_selector("random", k=4))
    with pytest.raises(ContractError, match="says that it ignores delays, but other delays gave another"):
        check_selector(Watcher(k=4))


def test_a_charged_warm_up_that_trains_cannot_be_charged_afterwards(tmp_path):
    free = experiment("nycmesh", "divfl")
    charged = experiment("nycmesh", "divfl", clock={"charge_warmup": True})
    record = run_one(free, free.schemes[0], 0, tmp_path / "free")
    with pytest.raises(InputError, match="a warm-up that is charged is its first round"):
        clock_run(record, charged)
    measuring = {"fleet": {"warmup_trains": False}}
    free = experiment("nycmesh", "divfl", **measuring)
    charged = experiment("nycmesh", "divfl", clock={"charge_warmup": True}, **measuring)
    record = run_one(free, free.schemes[0], 0, tmp_path / "measured")
    assert clock_run(record, charged).rounds[-1].clock > record.rounds[-1].clock
