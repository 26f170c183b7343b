"""NVFlare for real, on loopback: its simulator, its POC deployment, a client that fails, a job that goes on.

`make test-nvflare` runs these; they take minutes. Nothing here asserts a duration.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from fedpace.core.coordinator import Coordinator
from fedpace.records.run import read_run

pytestmark = [pytest.mark.nvflare, pytest.mark.slow]

JOB = Path(__file__).resolve().parents[2] / "examples" / "nvflare_digits" / "job.py"
PATIENCE = 1800
"""Seconds after which a federation is given up: where a machine is busy, sites take minutes to begin."""


@pytest.fixture
def digits(tmp_path):
    """Run the example, and return its diary and what it printed."""

    def run(*arguments):
        environment = os.environ | {
            "HOME": str(tmp_path),
            "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
        }
        folders = ["--state", str(tmp_path / "state"), "--workspace", str(tmp_path / "workspace")]
        command = [sys.executable, str(JOB), *folders, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-5000:]
        return read_run(tmp_path / "state").rounds[1:], output

    return run


def accuracy(output):
    return float(re.findall(r"^DIGITS accuracy (\S+)", output, re.M)[-1])


def column(folder, name):
    coordinator = Coordinator.restore(next(folder.glob("session-*")))
    return dict(zip(coordinator.clients, coordinator.ledger.columns[name].tolist(), strict=True))


def test_the_simulator_reaches_the_target_and_a_second_job_goes_on(digits, tmp_path):
    arguments = ["--sites", "5", "--k", "3", "--selector", "delayhet-sampling", "--target", "1.0"]
    rounds, first = digits(*arguments, "--rounds", "4")
    assert [entry.number for entry in rounds] == [1, 2, 3, 4]
    assert accuracy(first) >= 0.85
    known = column(tmp_path / "state", "participations")
    assert set(known) == {f"site-{number}" for number in range(1, 6)}
    assert all(
        seconds > 1 for seconds in column(tmp_path / "state", "delay").values()
    )  # the model's, not the machine's
    assert Coordinator.restore(next((tmp_path / "state").glob("session-*"))).view().moments is not None
    rounds, second = digits(*arguments, "--rounds", "6")
    assert [entry.number for entry in rounds] == [1, 2, 3, 4, 5, 6]
    assert rounds[4].clock > rounds[3].clock
    assert sum(column(tmp_path / "state", "participations").values()) > sum(known.values())
    assert accuracy(second) >= 0.85


def test_a_scheme_that_asks_first(digits, tmp_path):
    """The question, its answer without training, and the round: all through NVFlare's simulator."""
    rounds, _ = digits("--sites", "3", "--k", "2", "--rounds", "2", "--selector", "folb", "--target", "1.0")
    assert len(rounds) == 2
    assert [bool(entry.probed) for entry in rounds] == [False, True]  # its first round is drawn at random
    assert all(len(entry.clients) <= 2 for entry in rounds)


def test_a_deployment_survives_a_client_that_fails(digits, tmp_path):
    """Server and three sites as processes of their own; times are measured."""
    rounds, output = digits(
        *["--poc", "--sites", "3", "--k", "3", "--rounds", "4", "--selector", "random", "--target", "1.0"],
        # The deadline only bounds the test: sites may take minutes to load torch where the machine is busy.
        *["--delays", "none", "--deadline", "300", "--raises", "site-2"],
    )
    assert len(rounds) == 4, output[-5000:]
    failures, finished = column(tmp_path / "state", "failures"), column(tmp_path / "state", "participations")
    assert failures["site-2"] >= 1
    assert failures["site-1"] == failures["site-3"] == 0
    assert finished["site-1"] == finished["site-3"] == 4
    assert all(seconds > 0 for seconds in column(tmp_path / "state", "delay").values())
    assert accuracy(output) >= 0.8


# -- without rounds ------------------------------------------------------------------------------------------


def counted_once(folder, rounds):
    """Every answer of the steps is one of its site's, and nobody has more of them than tasks."""
    answers = Counter(site for entry in rounds for site in entry.clients if site not in entry.failed)
    finished, started = column(folder, "participations"), column(folder, "started")
    return all(answers[site] == finished[site] <= started[site] for site in finished)


@pytest.mark.parametrize("scheme", ["pace-async", "fedbuff"])
def test_without_rounds_in_the_simulator_and_a_second_job_goes_on(digits, tmp_path, scheme):
    """Slow sites on one machine: fast ones answer several times before the slowest does."""
    arguments = ["--sites", "4", "--k", "4", "--selector", scheme, "--target", "1.01", "--delays", "lognormal"]
    rounds, _ = digits(*arguments, "--rounds", "8")
    assert [entry.number for entry in rounds] == list(range(1, 9))
    finished = column(tmp_path / "state", "participations")
    assert max(finished.values()) > min(finished.values()), "nobody waits for the slowest"
    assert counted_once(tmp_path / "state", rounds)
    before = rounds
    rounds, second = digits(*arguments, "--rounds", "14")
    assert rounds[:8] == before
    assert [entry.number for entry in rounds] == list(range(1, 15))
    assert rounds[8].clock >= rounds[7].clock
    assert counted_once(tmp_path / "state", rounds)
    assert accuracy(second) >= 0.8


def test_without_rounds_a_deployment_survives_a_client_that_fails(digits, tmp_path):
    """Server and three sites as processes of their own; times are measured."""
    rounds, output = digits(
        *["--poc", "--sites", "3", "--k", "4", "--rounds", "12", "--selector", "fedbuff", "--target", "1.01"],
        *["--delays", "none", "--raises", "site-2"],
    )
    assert len(rounds) == 12, output[-5000:]
    failures, finished = column(tmp_path / "state", "failures"), column(tmp_path / "state", "participations")
    assert failures["site-1"] == failures["site-3"] == 0
    assert finished["site-1"] >= 1
    assert finished["site-3"] >= 1
    assert finished["site-2"] <= 1, "its script ended with its second task"
    assert counted_once(tmp_path / "state", rounds)
    assert accuracy(output) >= 0.7
