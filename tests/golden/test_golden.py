"""What every scheme did when its golden file was written, it still does.

After a change that was meant, `python tests/golden/regenerate.py SCHEME` writes the file anew; README.md lists them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from regenerate import DECIDED, FOLDER, MEASURED, golden

from fedpace import registry

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
            assert {key: now[key] for key in DECIDED} == {key: before[key] for key in DECIDED}, where
            for key in MEASURED:
                expected_value = (
                    before[key] if before[key] is None else pytest.approx(before[key], rel=TOLERANCE, abs=1e-6)
                )
                assert now[key] == expected_value, f"{where}: {key}"
