"""Schemes must stay where they arrive: the grid's runs end too soon to see whether they do."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED = 100

sys.path.append(str(BENCHMARKS))
try:
    from grid import cells, schemes, staying, tuning
finally:
    # It must not stay there, where a file shadows Python's `selectors`.
    sys.path.remove(str(BENCHMARKS))

TASKS = {task.name: task for task in cells.EMBEDDED}
SCHEMES = {scheme.label: scheme for scheme in schemes.everybody()}
PLACES = {
    cell.name: cell
    for cell in cells.cells(cells.EMBEDDED)
    if cell.name.endswith(("synthetic/independent", "nycmesh/rare"))
}

OFTEN = [
    ("digits-rotated/synthetic/independent", "pace"),
    ("digits-rotated/synthetic/independent", "random"),
    ("digits-rotated/synthetic/independent", "random-fedexp"),
    ("digits-rotated/synthetic/independent", "oort"),
    ("digits-0.3/nycmesh/rare", "random-fedexp"),
    ("digits-0.3/nycmesh/rare", "tifl"),
    ("digits-0.3/nycmesh/rare", "flanp"),
    ("quadratic/synthetic/independent", "random-fedexp"),
]
"""Half a minute of all that there is; the rest is slow."""

LEAVES = {(place, "ace") for place in PLACES if place.startswith("quadratic")}
"""ACE steps with old updates at every arrival. Stale gradients need shorter steps the longer the delays are: at the
step size that suits random selection, ACE's default server rate is too large for Quadratic."""


def stays(place, label):
    """One seed, or the mean of two where the first alone is beyond what is allowed: single runs differ by that much."""
    cell = PLACES[place]
    found = [staying.long_run(SCHEMES[label], cell, tuning.Tuned().rate(cell), SEED)]
    if not found[0].stays:
        found.append(staying.long_run(SCHEMES[label], cell, tuning.Tuned().rate(cell), SEED + 1))
    lost = np.mean([one.lost for one in found])
    assert lost <= found[0].allowed, (
        f"{label} on {place} held {found[0].best:.4f} at its best, but has {found[0].late:.4f} in rounds "
        f"{staying.LATE} to {staying.ROUNDS}: it lost {lost:.4f}, and {found[0].allowed} is allowed"
    )


@pytest.mark.parametrize(("place", "label"), OFTEN)
def test_it_stays_where_it_arrives(place, label):
    stays(place, label)


@pytest.mark.slow
@pytest.mark.parametrize("label", SCHEMES)
@pytest.mark.parametrize("place", PLACES)
def test_everything_stays_where_it_arrives(place, label):
    if not SCHEMES[label].runs_on(PLACES[place].task.data):
        pytest.skip("these data lack what the scheme needs")
    if (place, label) in LEAVES:
        with pytest.raises(AssertionError, match="is allowed"):
            stays(place, label)
    else:
        stays(place, label)


# -- the judgement itself ----------------------------------------------------------------------------------


def test_a_curve_that_falls_back_is_found_out():
    climbing = np.concatenate([np.linspace(0.1, 0.9, 50), np.full(251, 0.9)])
    assert staying.stay(climbing, "accuracy").stays
    fallen = climbing.copy()
    fallen[200:] = 0.885
    found = staying.stay(fallen, "accuracy")
    assert not found.stays
    assert (found.best, found.late) == (pytest.approx(0.9), pytest.approx(0.885))
    peak = climbing.copy()
    peak[60] = 1.0
    assert staying.stay(peak, "accuracy").stays, "a single round was not held"


def test_a_loss_is_judged_by_the_excess_that_the_initial_model_had():
    falling = np.concatenate([[101.0], np.full(199, 1.0), np.full(101, 2.9)])
    assert staying.stay(falling, "loss").lost == pytest.approx(0.019)
    assert staying.stay(falling, "loss").stays
    falling[200:] = 3.1
    assert not staying.stay(falling, "loss").stays
    assert not staying.stay(np.linspace(1, 2, 301), "loss").stays, "it never got anywhere"
    with pytest.raises(ValueError, match="more than 200 rounds, but 149 came"):
        staying.stay(np.ones(150), "loss")
