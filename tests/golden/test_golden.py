"""What every scheme did when its golden file was written, it still does.

After a change that was meant, `python tests/golden/regenerate.py SCHEME` writes the file anew; README.md lists them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hosts import RUNS, needs_flower
from regenerate import DECIDED, FOLDER, HOSTS, MEASURED, golden

from fedpace._base import registry

TOLERANCE = 1e-4
"""Relative: other processors add up in another order, and single precision carries that through the rounds."""


def test_every_scheme_has_its_golden_file():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(registry.selectors.names())


@pytest.mark.parametrize("scheme", registry.selectors.names())
def test_runs_are_as_they_were(scheme):
    expected = json.loads((FOLDER / f"{scheme}.json").read_text())
    found = golden(scheme)
    assert list(found) == list(expected)
    for case, rounds in expected.items():
        for now, before in zip(found[case], rounds, strict=True):
            where = f"{scheme}, {case}, round {before['number']}"
            assert decided(now) == decided(before), where
            for key in MEASURED:
                expected_value = (
                    before[key] if before[key] is None else pytest.approx(before[key], rel=TOLERANCE, abs=1e-6)
                )
                assert now[key] == expected_value, f"{where}: {key}"


def decided(row):
    """What a scheme decided; a solver's steps and final gap depend on how the processor rounds."""
    told = {key: row[key] for key in DECIDED}
    return told | {"status": re.sub(r"after \d+ steps, duality gap \S+", "", told["status"] or "")}


def test_every_run_on_a_host_has_its_golden_file():
    assert {path.stem for path in HOSTS.glob("*.jsonl")} == set(RUNS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_runs_on_hosts_are_as_they_were(name):
    if needs_flower(name):
        pytest.importorskip("flwr")
    expected = (HOSTS / f"{name}.jsonl").read_text().splitlines()
    found = RUNS[name]()
    assert len(found) == len(expected)
    for number, (now, before) in enumerate(zip(found, expected, strict=True)):
        assert_close(json.loads(now), json.loads(before), f"{name}, line {number}")


def assert_close(now, before, where):
    """Numbers agree within the tolerance, all else exactly."""
    if isinstance(before, dict):
        assert list(now) == list(before), where
        for key in before:
            assert_close(now[key], before[key], f"{where}: {key}")
    elif isinstance(before, list):
        assert len(now) == len(before), where
        for place, (each, other) in enumerate(zip(now, before, strict=True)):
            assert_close(each, other, f"{where}[{place}]")
    elif isinstance(before, float):
        assert now == pytest.approx(before, rel=TOLERANCE, abs=1e-6), where
    else:
        assert now == before, where
