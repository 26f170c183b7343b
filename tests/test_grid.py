"""What `benchmarks/time_to_target.py` concludes from rows, and who takes part."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.core.errors import InputError
from fedpace.core.types import View

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def grid():
    """The benchmark's package; its folder must not stay on the path, where a file shadows Python's `selectors`."""
    sys.path.append(str(BENCHMARKS))
    try:
        from grid import analysis, schemes

        yield type("Grid", (), {"analysis": analysis, "schemes": schemes})
    finally:
        sys.path.remove(str(BENCHMARKS))


def rows(times, *, warmup=0.0):
    """label -> seconds by seed; None = missed. The hard target takes twice as long."""
    return [
        {
            "cell": "toy/synthetic/independent",
            "scheme": label,
            "selector": label.split("-hurried")[0].split("-variant")[0],
            "seed": seed,
            "clock": 1000.0,
            "warmup": warmup if label == "pace" else 0.0,
            "clients": 5.0,
            "easy": {"target": 0.9, "seconds": seconds},
            "hard": {"target": 0.95, "seconds": None if seconds is None else 2 * seconds},
        }
        for label, by in times.items()
        for seed, seconds in enumerate(by)
    ]


def test_who_is_fastest_and_by_how_much(grid):
    found = grid.analysis.summarise(
        rows(
            {
                "random": [100.0, 100.0],
                "fed-cs": [40.0, 90.0],
                "delayhet-sampling": [50.0, None],
                "fed-cs-hurried": [10.0, 10.0],
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
        "control": "fed-cs-hurried",
    }
    assert easy["standing"] == "fastest", "neither its variants nor controls compete"
    assert easy["flagship_over_best"]["baseline"]["mean"] == pytest.approx(6**0.5, abs=1e-4)
    verdict = found["verdict"]
    assert verdict["speed_up_over_best_baseline"] == {"synthetic": pytest.approx(6**0.5, abs=1e-3)}
    assert verdict["speed_up_over_best_of_the_papers_baselines"] == {"synthetic": pytest.approx(4.082, abs=1e-3)}
    assert verdict["speed_up_over_best_control"] == {"synthetic": pytest.approx(0.408, abs=1e-3)}
    assert verdict["speed_up_over_random"]["delayhet-sampling"]["cells_with_a_failure"] == 2
    assert verdict["fastest_or_tied"] == 2


@pytest.mark.parametrize(
    ("pace", "standing", "misses"),
    [
        ([95.0, 110.0, 101.0], "tied", False),
        ([150.0, 160.0, 155.0], "slower", False),
        ([10.0, 10.0, None], "failed", True),
    ],
)
def test_what_is_only_noise(grid, pace, standing, misses):
    cell = grid.analysis.summarise(rows({"random": [100.0, 100.0, 100.0], "pace": pace}))["cells"][0]
    assert cell["standing"] == standing
    assert cell["misses_what_random_reaches"] is misses


def test_the_warm_up_counts_when_it_is_charged(grid):
    given = rows({"random": [100.0, 100.0], "pace": [50.0, 50.0]}, warmup=70.0)
    assert grid.analysis.summarise(given)["verdict"]["fastest"] == 2
    charged = grid.analysis.summarise(given, charged=True)["verdict"]
    assert charged["not_fastest"] == {"toy/synthetic/independent/easy": "random"}


def test_a_hurried_scheme_chooses_as_it_does_and_steps_as_pace_does(grid):
    scheme = next(one for one in grid.schemes.everybody() if one.label == "fed-cs-hurried")
    view = View(
        step=0,
        now=0.0,
        available=np.ones(20, bool),
        share=np.full(20, 1 / 20),
        delay=np.arange(1.0, 21.0),
        loss=np.full(20, np.nan),
        loss_step=np.full(20, -1),
        participations=np.zeros(20, int),
    )
    plain, _ = make_selector("fed-cs").select(None, view, np.random.default_rng(0))
    hurried, _ = scheme.selector.select(None, view, np.random.default_rng(0))
    assert hurried.clients.tolist() == plain.clients.tolist()
    assert scheme.selector.server == make_selector("pace").server
    assert grid.schemes.camp(scheme.label, scheme.name) == "control"


def test_every_registered_scheme_takes_part_and_variants_can_be_given(grid):
    labels = [scheme.label for scheme in grid.schemes.everybody()]
    assert len(set(labels)) == len(labels)
    assert {"random", "pace", "delayhet-submodular", "submodular-min-norm", "oort"} <= set(labels)
    variant = grid.schemes.parse("bold=flanp:k=5,growth=3.0")
    assert (variant.label, variant.selector.k) == ("bold", 5)
    with pytest.raises(InputError, match="expected a variant"):
        grid.schemes.parse("bold")
    with pytest.raises(InputError, match="no scheme 'nobody'"):
        grid.schemes.chosen("nobody", [])
