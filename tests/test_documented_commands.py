"""Every command in the documents is run here, cut short, or stands in a list that says why it is not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedpace.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
COMMANDS = "|".join(get_command(app).commands)  # type: ignore[attr-defined]
PROGRAMS = (
    rf"(?:fedpace (?:{COMMANDS})\b|make [\w-]+(?: +[A-Z_]+=.*|)$|"
    r"(?:pip|python|flwr|flower-\w+|nvflare|git|ray|tensorboard) )"
)
"""How a command begins. In lists prose is indented as code is, and may begin with the name of a program."""
PLACEHOLDER = re.compile(r"\b[A-Z]+\b|\.\.\.|\||…")
"""Names that the reader replaces: such a line says how a command looks, and is none."""
NOT_RUN = {
    r"docs/appendix/.*\.md: .*experiments/": "hours; tests/test_documents.py reads these, tests/golden runs schemes",
    r".*: fedpace data \w+ (mnist|femnist)": "needs the Hub, or a folder of data; tests/data/test_hub.py plays the Hub",
    r".*: fedpace compare experiments/small-resnet18": "needs CIFAR-10; tests/test_documents.py reads the experiment",
    r".*: fedpace reproduce": "hours; tests/data/test_reproduce.py runs a miniature of everything that it has",
    r".*--engine ray": "needs a cluster; tests/sim/test_ray_engine.py starts one (make test-ray)",
    r".*--engine processes": "starts processes; tests/sim/test_engines.py does",
    r".*--track 'mlflow\(uri=": "waits for a server; tests/tracking/test_trackers.py starts one",
    r".*: pip install": "installs; `make demo` and `make test` do it",
    r".*: make \w": "sets up an environment; that there is such a target is looked up below",
    r".*: python benchmarks/": "minutes to hours; that there is such a file with such options is looked up below",
    r".*: python examples/lora": "minutes, and needs the extra lora; tests/examples runs it in small",
    r".*: python examples/nvflare_digits": "needs NVFlare and TenSEAL; tests/nvflare runs it",
    r".*: python examples/nvflare_edge": "needs NVFlare; tests/nvflare/test_edge.py runs it",
    r".*: python -m pytest": "a part of these tests",
    r".*: (flwr|flower-|nvflare|ray|tensorboard)": "a server of another program; make test-flower and test-nvflare",
}
"""Lines (`document: command`) that are not run, and why."""


def lines_of_code(document: str) -> list[str]:
    """Return the commands that a document's code blocks hold, without what is said behind them."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```(?:\w*sh|console|)\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found = [*indented, *(line.strip() for block in blocks for line in block.splitlines())]
    told = [line.removeprefix("$ ").partition("  #")[0].strip() for line in found]
    return [line for line in told if re.match(PROGRAMS, line)]


def in_the_text(document: str) -> list[str]:
    """Return the fedpace commands that stand in sentences."""
    return re.findall(r"`(fedpace [^`\n]*)`", (ROOT / document).read_text(encoding="utf-8"))


BLOCKS = sorted({(name, line) for name in DOCUMENTS for line in lines_of_code(name)})
SENTENCES = sorted({(name, line) for name in DOCUMENTS for line in in_the_text(name)})


def why_not(document: str, line: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, f"{document}: {line}")), None)


def cut_short(line: str) -> str:
    """Return a command that does the same with less: the last of two options of one name counts."""
    words = shlex.split(line)
    if words[1] in ("compare", "run"):
        line += " --max-rounds 1" + (" --seeds 1 --jobs 1" if words[1] == "compare" else "")
        if words[1] == "compare" and "--selectors" not in words and ".toml" not in line:
            line += " --selectors random,pace"
    return line + {"watch": " --once", "population": " --hours 0.1"}.get(words[1], "")


RUN = sorted({cut_short(line) for name, line in BLOCKS if line.startswith("fedpace ") and not why_not(name, line)})


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Where the documents' commands find what they speak of: experiments, a demo that was run, delays, moments."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    place = tmp_path_factory.mktemp("desk")
    (place / "experiments").symlink_to(ROOT / "experiments")
    for name in ("visits.csv", "visits.toml"):
        (place / name).symlink_to(ROOT / "examples" / "own_table" / name)
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(3, 1, 12).tolist()
    (place / "delays.csv").write_text("\n".join(["seconds", *map(str, seconds)]) + "\n")
    parquet.write_table(pyarrow.table({"seconds": seconds}), place / "delays.parquet")
    np.savez(place / "moments.npz", factors=rng.normal(size=(12, 5, 3)))
    (place / "heart").mkdir()
    for centre in ("basel", "lyon"):
        rows = [f"{rng.integers(30, 80)},{('no', 'yes')[row % 2]}" for row in range(20)]
        (place / "heart" / f"{centre}.csv").write_text("\n".join(["age,disease", *rows]) + "\n")
    (place / "state").mkdir()
    (place / "state" / "lock").touch()  # as a server leaves it
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        demo = "compare --out runs/demo --max-rounds 2 --seeds 1 --jobs 1 --selectors random,pace"
        assert CliRunner().invoke(app, demo.split()).exit_code == 0
    return place


def test_commands_in_blocks_run(desk, monkeypatch):
    """In one test, since some look at what others wrote; all comparisons are reported while there is one only."""
    monkeypatch.chdir(desk)
    for line in sorted(RUN, key=lambda line: (line != "fedpace report runs", line)):
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}: {result.output}\n{result.exception}"
    assert {"report.html", "report-target-0.8.html"} <= {path.name for path in (desk / "runs" / "first").iterdir()}
    assert (desk / "plan.png").exists()


def test_other_commands_are_listed_with_a_reason():
    left = [(name, line) for name, line in BLOCKS if not line.startswith("fedpace ") and why_not(name, line) is None]
    assert left == [], "run them in a test, or say in NOT_RUN why not"
    idle = [pattern for pattern in NOT_RUN if not any(re.match(pattern, f"{name}: {line}") for name, line in BLOCKS)]
    assert idle == [], "nothing of this kind is left in the documents"


def test_scripts_and_targets_in_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for name, line in BLOCKS:
        words = shlex.split(line)
        if words[0] == "make":
            assert words[1] in targets, f"{name}: {line}"
        elif words[0] == "python" and words[1].endswith(".py"):
            script = (ROOT / words[1]).read_text(encoding="utf-8")
            for option in (word.partition("=")[0] for word in words if word.startswith("--")):
                assert f'"{option}"' in script, f"{name}: {line}"


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (name, line)
        for name, line in sorted({*SENTENCES, *((n, c) for n, c in BLOCKS if c.startswith("fedpace "))})
        if " " in line[8:] and not PLACEHOLDER.search(line)
    ],
)
def test_commands_that_are_not_run_are_understood(document, line, monkeypatch):
    """By the program's own parser, down to the last option."""
    monkeypatch.chdir(ROOT)
    command, words = get_command(app), shlex.split(line)[1:]
    context = command.make_context("fedpace", words)
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, words, parent=context)
