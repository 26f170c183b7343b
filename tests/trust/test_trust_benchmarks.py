"""The benchmarks of trust: what they keep, when a row passes, and in which order runs come."""

from __future__ import annotations

import math

import pytest
from benchmark_path import benchmark

from fedpace.records.run import Round

honest, attacks, shown = benchmark("honest"), benchmark("attacks"), benchmark("lib.attacks_shown")
runs, defences = benchmark("lib.runs"), benchmark("lib.defences")


def pair(name, scheme, seed, off, on, **more):
    """Both sides of a run, as they are kept."""
    quiet = dict.fromkeys(("excluded", "refused", "clipped", "capped"), 0)
    return {
        honest.key(name, scheme, seed, "off"): {**quiet, **off},
        honest.key(name, scheme, seed, "default"): {**quiet, **on, **more},
    }


@pytest.mark.parametrize(
    ("name", "off", "on", "more", "passed"),
    [
        ("sorted-10", (0.95, 0.90), (0.945, 0.895), {}, True),
        ("sorted-10", (0.95, 0.90), (0.930, 0.900), {}, False),
        ("sorted-10", (0.95, 0.90), (0.950, 0.850), {}, False),
        ("sorted-10", (0.90, 0.80), (0.950, 0.900), {}, True),
        ("sorted-10", (0.95, 0.90), (0.950, 0.900), {"excluded": 1}, False),
        ("sorted-10", (0.95, 0.90), (0.950, 0.900), {"refused": 1}, False),
        ("sorted-10", (0.95, 0.90), (0.950, 0.900), {"clipped": 9, "capped": 9}, True),
        ("sorted-10", (0.95, 0.90), (None, None), {}, False),
        ("flower-20", (10.5, None), (10.55, None), {}, True),
        ("flower-20", (10.5, None), (13.8, None), {}, False),
        ("flower-20", (10.5, None), (7.2, None), {}, False),
    ],
)
def test_a_row_passes_where_honest_clients_lose_nothing(name, off, on, more, passed):
    sides = [dict(zip(("metric", "worst"), side, strict=True)) for side in (off, on)]
    (row,) = honest.rows(pair(name, "pace", 0, *sides, **more))
    assert row["passed"] is passed
    assert ("PASS" if passed else "FAIL") in honest.markdown([row]).splitlines()[2]


def test_seeds_are_paired():
    done = pair("visits", "random", 0, {"metric": 0.7, "worst": 0.6}, {"metric": 0.71, "worst": 0.6})
    done |= pair("visits", "random", 1, {"metric": 0.8, "worst": 0.6}, {"metric": 0.79, "worst": 0.6})
    done |= {honest.key("visits", "random", 2, "off"): {"metric": 0.1, "worst": 0.1}}  # the other side is not there yet
    (row,) = honest.rows(done)
    assert (row["seeds"], row["metric"]["off"]) == (2, pytest.approx(0.75))
    assert row["metric"]["error"] == pytest.approx(0.01)


def test_there_are_federations_of_all_sizes():
    sizes = {federation.clients for federation in honest.FEDERATIONS.values()}
    assert len(honest.FEDERATIONS) >= 14
    assert sizes >= {6, 20, 60, 300}


@pytest.mark.parametrize("name", ["line-20", "visits"])
def test_a_federation_is_run(name):
    found = honest.run(name, "random", 0, "off", quick=True)
    assert 0 < found["metric"] < 1
    assert found["excluded"] == found["refused"] == 0
    assert (found["worst"] is None) == (name == "line-20")


def test_a_federation_on_flower_is_run():
    pytest.importorskip("flwr")
    found = honest.run("flower-6", "random", 0, "off", quick=True)
    assert found["metric"] == pytest.approx(3.5, abs=0.2)


def test_what_is_there_is_not_run_again(tmp_path):
    first = runs.Runs(tmp_path, "0/2")
    assert list(first.mine("abcde")) == ["a", "c", "e"]
    first.add("a", {"metric": 1.0})
    second = runs.Runs(tmp_path, "1/2")
    assert list(second.mine("abcde")) == ["b", "d"]
    second.add("b", {"metric": 2.0})
    with (tmp_path / "runs-1-2.jsonl").open("a") as file:
        file.write('{"run": "d", "met')  # it was killed here
    done = runs.Runs(tmp_path).done
    assert {name: found["metric"] for name, found in done.items()} == {"a": 1.0, "b": 2.0}
    assert {found["commit"] for found in done.values()} == {runs.commit()}
    with pytest.raises(SystemExit):
        runs.Runs(tmp_path, "2/2")


def test_what_a_defence_did_is_counted():
    def current(**facts):
        return Round(1, 0.0, 0.0, 0.0, None, None, facts=facts)

    told = [current(excluded=["a"], clipped=["b", "c"]), current(capped={"d": 0.1}, excluded=["a", "e"]), current()]
    assert defences.seen(told) == {"excluded": 2, "refused": 0, "clipped": 2, "capped": 1}
    assert defences.seen([current(failures={"b": "why"})])["refused"] == 1


def test_the_most_important_attacks_come_first():
    who, every = (*attacks.WHO, attacks.ONE), defences.DEFENCES
    found = list(attacks.wanted(list(attacks.SCHEMES), attacks.USUAL, who, every, [0, 1, 2]))
    assert len(found) == len(set(found))
    attacked = [run for run in found if run[1] not in ("honest", "not there")]
    assert found.index(attacked[0]) == len(found) - len(attacked)
    first = attacked[: 2 * 9 * 4 * 3]  # schemes, attacks, defences, seeds
    assert {run[2] for run in first} == {"20% fastest"}
    assert {run[0] for run in first} == {"pace", "pace-async"}
    assert {run[3] for run in first} == {"default", "fltrust", "zeno", "off"}
    assert {run[1] for run in attacked if run[2] == attacks.ONE} == {"backdoor"}


def test_an_attack_is_compared_with_the_honest_run_and_with_the_fleet_without_the_attackers():
    def run(final, seconds):
        return {"final": final, "seconds": seconds, "success": 0.5, "excluded": 0}

    done = {
        attacks.key("pace", "honest", "nobody", "off", 0): run(0.95, 100.0),
        attacks.key("pace", "not there", "20% fastest", "off", 0): run(0.95, 200.0),
        attacks.key("pace", "alie", "20% fastest", "off", 0): run(0.40, None),
        attacks.key("pace", "alie", "20% fastest", "default", 0): run(0.94, 300.0),
        attacks.key("pace", "backdoor", "20% fastest", "default", 0): run(0.94, 100.0),
    }
    found = shown.cells(done)
    slow = found["pace", "alie", "20% fastest", "default"]
    assert (slow.times, slow.without, slow.good, slow.good_without) == ((3.0,), (1.5,), False, True)
    lost = found["pace", "alie", "20% fastest", "off"]
    assert lost.times == (math.inf,)
    assert lost.lost == pytest.approx(0.55)
    assert not lost.good_without
    assert found["pace", "backdoor", "20% fastest", "default"].success == 0.5
    text = shown.markdown(found, ["pace"], list(attacks.ATTACKS), attacks.WHO)
    assert "| alie | 0.40 (never) | 0.94 (1.5x) |" in text
    assert "| honest | 0.95 (1x) |" in text
    assert "| default | 1, 1 of 1 |" in text
    assert "| alie | 0.94 (1.5x) |  |" in text, "the overview has no run without a defence"


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    done = {
        attacks.key("pace", "honest", "nobody", "off", 0): {"final": 0.9, "seconds": 1.0, "success": 0.0},
        attacks.key("pace", "alie", "20% fastest", shown.DEFAULT, 0): {"final": 0.5, "seconds": None, "success": 0.0},
        attacks.key("pace", "alie", "20% fastest", shown.VALIDATED[-1], 0): {
            "final": 0.8,
            "seconds": 2.0,
            "success": 0,
        },
    }
    shown.picture(shown.cells(done), ["pace"], list(attacks.ATTACKS), "20% fastest", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
