"""Pages, and a browser to look at them with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpace.records.run import RunRecord
from fedpace.report.comparison import summarise
from fedpace.report.page import write_page

sys.path.insert(0, str(Path(__file__).parent))

from driver import Browser
from made_up import CASES, MARKUP, a_run


@pytest.fixture(scope="session")
def made() -> dict[str, list[RunRecord]]:
    """Make the runs of every page up."""
    found = {}
    for case, options in CASES.items():
        how = dict(options)
        names, seeds = how.pop("names"), how.pop("seeds")
        found[case] = [a_run(name, seed, **how) for seed in range(seeds) for name in names]
    return found


@pytest.fixture(scope="session")
def pages(made: dict[str, list[RunRecord]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write every page once."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for case, runs in made.items():
        found[case] = folder / f"{case}.html"
        write_page(runs, summarise(runs), found[case], title=MARKUP if case == "markup" else f"Page {case}")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests: `make test-browser` installs it."""
    if shutil.which("chromedriver") is None:
        pytest.skip("there is no chromedriver: `make test-browser` installs it")
    with Browser() as started:
        yield started
