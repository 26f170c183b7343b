"""What the hints name works as written, and `fedpace --version` needs nothing beyond the library."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from fedpace._base.errors import install_command

BARE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "pydantic", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
sys.argv = ["fedpace", *sys.argv[1:]]
from fedpace.__main__ import main
main()
"""


def bare(*arguments):
    """Run the command where only the library's own dependencies are installed."""
    return subprocess.run([sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, check=False)


def test_the_version_needs_no_extra():
    done = bare("--version")
    assert (done.returncode, done.stdout.strip()) == (0, version("fedpace")), done.stderr


def test_other_commands_name_a_command_that_installs_what_they_need():
    done = bare("list")
    assert done.returncode == 1
    assert f"error: the command line needs 'typer': {install_command('sim,data,report')}" in done.stderr


def test_the_hint_names_the_python_that_runs(monkeypatch, tmp_path):
    """After `make demo` the environment is not activated: another pip may be the first on the PATH, or none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert install_command("data") == f"{shlex.quote(sys.executable)} -m pip install 'fedpace[data]'"
    monkeypatch.chdir(Path(sys.executable).parent)
    assert install_command("data") == f"{Path(sys.executable).name} -m pip install 'fedpace[data]'"
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert install_command("data") == "pip install 'fedpace[data]'"


def test_the_extras_of_the_hints_exist():
    root = Path(__file__).parents[1]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py")]
    named = [re.findall(r'MissingExtraError\([^)]*?,\s*(?:extra=)?"([\w-]+)"', text) for text in sources]
    found = {extra for each in named for extra in each}
    assert {"sim", "data", "report", "frames"} <= found
    assert found <= set(declared)
