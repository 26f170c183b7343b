"""Every run of the suite draws the same cases, so that what passes once passes on every machine.

`HYPOTHESIS_PROFILE=random pytest` draws new ones: how bugs are looked for, not how changes are judged.
"""

import os
import sys

import pytest
from hypothesis import settings
from tiny import TINY

settings.register_profile("same", derandomize=True, deadline=None)  # speed lives in benchmarks, not in tests
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture
def tiny(tmp_path):
    """The file of a tiny experiment."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs `fedpace ...` in this process, in an empty folder; returns exit code, standard output and error."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "200")

    from fedpace.__main__ import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedpace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def write(tmp_path):
    """Write text as an experiment; return its file."""

    def write(text):
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write
