"""What `benchmarks/time_to_target.py` concludes."""

from __future__ import annotations

import pytest


def rows(times, *, free=()):
    """label -> seconds by seed; None = missed. The hard target takes twice as long; all are first met in half."""
    return [
        {
            "cell": "toy/synthetic/independent",
            "scheme": label,
            "selector": label.split("+steps")[0].split("-variant")[0],
            "options": {"k": 10},
            "factor": 1.0,
            "mode": mode,
            "seed": seed,
            "clock": 1000.0,
            "clients": 5.0,
            "easy": {"target": 0.9, "seconds": seconds, "first": 0.5 * (seconds or 20.0)},
            "hard": {"target": 0.95, "seconds": None if seconds is None else 2 * seconds, "first": seconds},
        }
        for mode, some in (("charged", times), ("free", dict(free)))
        for label, by in some.items()
        for seed, seconds in enumerate(by)
    ]


def test_who_is_fastest_and_by_how_much(grid):
    found = grid.analysis.summarise(
        rows(
            {
                "random": [100.0, 100.0],
                "fed-cs": [40.0, 90.0],
                "delayhet-sampling": [50.0, None],
                "fed-cs+steps": [5.0, 7.5],
                "pace": [20.0, 30.0],
                "pace-variant": [1.0, 1.0],
            }
        )
    )
    easy = found["cells"][0]
    assert easy["best"] == {
        "baseline": "fed-cs",
        "papers_baseline": "random",
        "paper": None,
        "of_all_others": "fed-cs",
        "control": "fed-cs+steps",
    }
    assert (easy["standing"], easy["standing_among_controls"]) == ("fastest", "slower"), "controls do not compete"
    assert easy["flagship_over_best"]["baseline"]["mean"] == pytest.approx(6**0.5, abs=1e-4)
    verdict = found["verdict"]
    assert verdict["speed_up_over_best_baseline"] == {"synthetic": pytest.approx(6**0.5, abs=1e-3)}
    assert verdict["speed_up_over_best_of_the_papers_baselines"] == {"synthetic": pytest.approx(4.082, abs=1e-3)}
    assert verdict["speed_up_over_best_control"] == {"synthetic": pytest.approx(0.25, abs=1e-3)}
    assert verdict["speed_up_over_random"]["delayhet-sampling"]["cells_with_a_failure"] == 2
    assert verdict["fastest_or_tied"] == 2
    assert verdict["slower_than_a_control"] == dict.fromkeys(
        ("toy/synthetic/independent/easy", "toy/synthetic/independent/hard"), "fed-cs+steps"
    )
    text = grid.markdown.page(found)
    assert "| toy | synthetic | 2.45x | fed-cs | 0.25x | fed-cs+steps | 4.08x | 2 / 0 / 0 / 0 |" in text
    assert "| toy/synthetic/independent/hard | 49 s | fed-cs (k 10) 120 s |" in text


@pytest.mark.parametrize(
    ("pace", "standing", "misses", "over"),
    [
        ([95.0, 110.0, 101.0], "tied", False, 0.982),
        ([150.0, 160.0, 155.0], "slower", False, 0.645),
        # A miss counts as the time after which it was given up: leaving it out would flatter.
        ([10.0, 10.0, None], "failed", True, 2.154),
    ],
)
def test_what_is_only_noise(grid, pace, standing, misses, over):
    found = grid.analysis.summarise(rows({"random": [100.0, 100.0, 100.0], "pace": pace}))
    cell = found["cells"][0]
    assert cell["standing"] == standing
    assert cell["misses_what_random_reaches"] is misses
    assert cell["flagship_over_best"]["of_all_others"]["mean"] == pytest.approx(over, abs=1e-3)


def test_other_ways_to_judge(grid):
    """With its warm-up free it is fastest; random needs none, so its run serves both. First crossings are read too."""
    found = grid.analysis.summarise(
        rows({"random": [100.0, 100.0], "pace": [120.0, 120.0]}, free={"pace": [50.0, 50.0]})
    )
    assert found["verdict"]["not_fastest"] == {
        "toy/synthetic/independent/easy": "random",
        "toy/synthetic/independent/hard": "random",
    }
    assert found["otherwise"]["free_warmup"]["fastest"] == 2
    assert found["otherwise"]["first_crossing"]["speed_up_over_best_of_all_others"] == {"synthetic": 0.833}
    assert found["otherwise"]["free_warmup_first_crossing"]["speed_up_over_best_of_all_others"] == {"synthetic": 2.0}


def given_up(found, label, beyond):
    """Let all runs of a scheme be given up: its targets are not held before `beyond`, and not met before twice that."""
    for row in found:
        if row["scheme"] == label:
            row["status"], row["clock"] = "cut", 2 * beyond
            for level in ("easy", "hard"):
                row[level] = {"target": row[level]["target"], "seconds": None, "first": None, "beyond": beyond}
    return found


def test_a_rival_that_was_given_up_counts_with_the_least_that_it_took(grid):
    """The best rival is the one that takes least: one given up later than that changes nothing."""
    times = {"random": [400.0, 400.0], "fed-cs": [40.0, 90.0], "flanp": [None, None], "pace": [10.0, 15.0]}
    whole = grid.analysis.summarise(given_up(rows(times), "random", 300.0))
    for cell in whole["cells"]:
        assert cell["best"]["of_all_others"] == "fed-cs"
        assert "at_least" not in cell["flagship_over_best"]["of_all_others"]
        entry = cell["schemes"]["random"]
        assert (entry["failed"], entry["given_up"], entry["at_least"], entry["geometric_mean"]) == (0, 2, 300.0, None)
        assert cell["misses_what_random_reaches"] is False
    assert whole["verdict"]["factors_at_least"] == {"synthetic": 0}
    # Given up before the best of the others is there, it may have been the best: the factor is a lower bound.
    bounded = grid.analysis.summarise(given_up(rows(times), "random", 50.0))
    easy = bounded["cells"][0]
    assert easy["best"]["of_all_others"] == "random"
    assert easy["flagship_over_best"]["of_all_others"]["mean"] == pytest.approx(50 / 150**0.5, abs=1e-3)
    assert easy["flagship_over_best"]["of_all_others"]["at_least"] is True
    assert bounded["verdict"]["factors_at_least"] == {"synthetic": 2}
    text = grid.markdown.page(bounded)
    assert "random (k 10) \u2265 50 s | \u2265 4.08" in text
    assert "| charged, held | \u2265 " in text
    # By first crossings it is known to be later: until its last round nothing was met.
    first = grid.analysis.judge(given_up(rows(times), "random", 50.0), measure="first")[0]
    assert first["schemes"]["random"]["at_least"] == 100.0


def test_what_a_run_must_beat_is_the_best_rival_of_its_cell(grid):
    """Controls and our own schemes are no rivals; the hard target decides."""
    times = {"random": [400.0, 400.0], "fed-cs": [40.0, 90.0], "flanp+steps": [11.0, 16.0], "pace": [10.0, 15.0]}
    judged = grid.sceptic.Judged(rows(times), "pace")
    assert judged.to_beat() == {"toy/synthetic/independent": pytest.approx((4 * 6) ** 0.5, abs=1e-3)}
