"""What works where torch is not installed: the demo, and every command that trains nothing with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedpace._base.errors import install_command

HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""
COMMAND = HIDE + "sys.argv[0] = 'fedpace'\nfrom fedpace.__main__ import main\nmain()\n"
SHORT = ["--selectors", "random,pace,pace-async", "--seeds", "1", "--max-rounds", "2"]


def python(code, *arguments, cwd):
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo, short, in a process in which torch cannot be imported."""
    folder = tmp_path_factory.mktemp("without")
    done = python(COMMAND, "compare", "--out", "demo", *SHORT, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "pace-async" in done.stdout
    (folder / "delays.csv").write_text("\n".join(["seconds", "3", "4", "5", "50", "500"]) + "\n")
    return folder


def test_the_demo_writes_everything(demo):
    for name in ("report.html", "report.png", "comparison.json", "pace/seed-0/model.safetensors"):
        assert (demo / "demo" / name).stat().st_size > 0


def test_the_demo_is_the_same_where_torch_is_installed(demo, tmp_path):
    code = "from fedpace.__main__ import main\nmain()\n"
    done = python(code, "compare", "--out", "demo", *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for path in (demo / "demo").rglob("rounds.jsonl"):
        assert path.read_bytes() == (tmp_path / path.relative_to(demo)).read_bytes()


def test_the_demo_loads_no_torch_even_where_it_is(tmp_path):
    code = (
        "import sys\nfrom fedpace.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)\n"
    )
    done = python(code, "compare", "--out", "demo", *SHORT, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "run --selector pace --max-rounds 2 --out one",
        "compare --selectors random,pace --dry-run",
        "compare --selectors random,pace --seeds 2 --max-rounds 2 --jobs 2 --out side-by-side",
        "report demo --at 30",
        "resume demo",
        "explain demo --client 7",
        "plan --delays delays.csv",
        "runs .",
        "export demo --to csv --out table.csv",
        "list schemes",
        "list models",
        "list datasets",
        "show softmax",
        "show conv2",
        "show pace",
        "data show digits",
        "delays show nycmesh",
    ],
)
def test_commands_that_need_no_torch(demo, command):
    done = python(COMMAND, *command.split(), cwd=demo)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr


def install(monkeypatch, folder):
    """Return what a process in this folder says: the hint names the interpreter relative to it where it can."""
    monkeypatch.chdir(folder)
    return f"which is not installed: {install_command('sim')}"


INSTEAD = (
    'NumPy trains softmax too: --arithmetic numpy, in a file arithmetic = "numpy" under [training], in Python '
    'training=fedpace.sim.training.Training(arithmetic="numpy")'
)


@pytest.mark.parametrize("command", ["run", "compare --seeds 1", "compare --dry-run"])
def test_what_needs_torch_says_what_to_install(demo, command, monkeypatch):
    done = python(COMMAND, *command.split(), "--arithmetic", "torch", cwd=demo)
    assert done.returncode == 2
    assert done.stderr == f"error: training softmax needs 'torch', {install(monkeypatch, demo)}; {INSTEAD}\n"


def test_from_python(tmp_path, monkeypatch):
    """Names of models work with NumPy; a model of one's own needs torch, and is told so."""
    code = HIDE + (
        "import fedpace, numpy as np\n"
        "from fedpace.sim.training import Training\n"
        "from fedpace._base.errors import MissingExtraError\n"
        "rng = np.random.default_rng(0)\n"
        "clients = [(X := rng.normal(size=(30, 4)), (X[:, 0] > 0).astype(int)) for _ in range(6)]\n"
        "given = dict(clients=clients, test=clients[0], schemes=['random(k=2)'], rounds=2, seeds=1, progress=False)\n"
        "print(fedpace.compare(**given, model='mlp', training=Training(arithmetic='numpy')))\n"
        "for model in ('softmax', 'conv2', lambda: None):\n"
        "    try:\n        fedpace.compare(**given, model=model)\n"
        "    except MissingExtraError as error:\n        print(error)\n"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hint = install(monkeypatch, tmp_path)
    assert done.stdout.splitlines()[-3:] == [
        f"training softmax needs 'torch', {hint}; {INSTEAD}",
        f"training conv2 needs 'torch', {hint}; NumPy trains only linear, mlp and softmax",
        f"a model of your own needs 'torch', {hint}",
    ]
