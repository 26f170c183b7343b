"""What the documents show is run: README's Python, the experiments, and the scheme that CONTRIBUTING adds."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import fedpace
from fedpace.cli import app
from fedpace.config import load_experiment
from fedpace.testing import check_selector

ROOT = Path(__file__).parents[1]


def python_blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return ["\n".join(line.removeprefix(indent) for line in block.splitlines()) for indent, block in blocks]


DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
NOT_RUN = {
    "CONTRIBUTING.md": "a module by itself: the test below runs it as one",
    "docs/flower.md": "a Flower app in pieces: tests/flower runs the example that it is from",
    "docs/nvflare.md": "an NVFlare job in pieces: tests/nvflare runs the example that it is from",
}
"""Documents whose Python is not run as it stands, and why."""
BLOCKS = [(name, block) for name in DOCUMENTS if name not in NOT_RUN for block in python_blocks(name)]


@pytest.mark.parametrize(("document", "block"), BLOCKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BLOCKS)])
def test_python_in_documents_runs(document, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # dataclasses look their module up
    exec(compile(block, document, "exec"), vars(module))


def test_every_page_is_in_the_site():
    listed = set(re.findall(r"(?:^|[\s:])([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}


def test_the_landing_page_has_the_numbers_of_readme_and_of_the_results():
    landing, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/index.md", "README.md"))
    over_random, over_fedbuff = re.findall(r"^\*\*([\d.]+)x\*\* as fast as", landing, flags=re.M)
    assert (
        f"{over_random} times\nas fast as with random selection and {over_fedbuff} times as fast as with FedBuff"
        in readme
    )
    ahead, cells = re.search(r"^\*\*(\d+) of (\d+)\*\* targets", landing, flags=re.M).groups()
    clearly = re.search(rf"For (\d+) of the {cells} targets the lead is clear", landing)[1]
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    table = results.partition("<!-- table: grid/pace-async/front -->")[2]
    row = next(line for line in table.splitlines() if line.startswith("| the best rival"))
    assert f"| {ahead} of {cells} | {clearly} |" in row


def test_the_scheme_of_contributing_keeps_the_contract(monkeypatch):
    (block,) = python_blocks("CONTRIBUTING.md")
    module = ModuleType("contributing")
    monkeypatch.setitem(sys.modules, "contributing", module)  # dataclasses look their module up
    exec(compile(block, "CONTRIBUTING.md", "exec"), vars(module))
    check_selector(module.Fastest(k=3))


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.name)
def test_experiments_are_valid(path):
    assert load_experiment(path).schemes


def test_the_experiment_of_the_documents_is_valid(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "experiments.md").read_text(), flags=re.DOTALL)
    (tmp_path / "documented.toml").write_text(block)
    assert len(load_experiment(tmp_path / "documented.toml").schemes) == 2


def test_the_experiment_on_a_table_is_that_of_the_example():
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "own-tables.md").read_text(), flags=re.DOTALL)
    assert tomllib.loads(block) == tomllib.loads((ROOT / "examples" / "own_table" / "visits.toml").read_text())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_readme_leads_to_every_document():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "@@" not in text
    for document in ROOT.glob("docs/*.md"):
        assert f"docs/{document.name}" in text, f"README should lead to {document.name}"


ADVICE = "Use `pace-async`. For synchronous rounds, use `pace`."


@pytest.mark.parametrize("document", ["README.md", "docs/index.md", "docs/howto/choose.md"])
def test_one_default_is_named_everywhere(document):
    assert ADVICE in (ROOT / document).read_text(encoding="utf-8")


def test_the_program_and_the_library_name_it_too():
    assert ADVICE in fedpace.make_selector.__doc__.replace("\n    ", " ")
    said = " ".join(CliRunner().invoke(app, ["list"], env={"COLUMNS": "90"}).stdout.split())
    assert ADVICE.replace("`", "") in said
    assert said.index("pace-async A step") < said.index("pace Fast clients") < said.index("adaptive-sampling")
    assert "-> use this scheme" in CliRunner().invoke(app, ["show", "pace-async"]).stdout
    assert CliRunner().invoke(app, ["list", "schemes"]).stdout == CliRunner().invoke(app, ["list", "selectors"]).stdout


def test_every_exported_name_is_in_the_reference():
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
    assert set(re.findall(r"^::: fedpace\.(\w+)$", pages, flags=re.M)) == set(fedpace.__all__)


def test_what_readme_shows_is_exported():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\bfedpace\.([A-Za-z_]+)\b", text))
    shown |= {name for line in re.findall(r"^from fedpace import (.*)$", text, flags=re.M) for name in line.split(", ")}
    modules = {path.stem for path in (ROOT / "src" / "fedpace").iterdir()}
    assert shown - modules <= set(fedpace.__all__)


def test_dir_shows_what_is_exported_and_nothing_else():
    assert {name for name in dir(fedpace) if not name.startswith("__")} == set(fedpace.__all__)


@pytest.mark.parametrize("document", [*DOCUMENTS, *map(str, sorted(ROOT.glob("examples/**/*.py")))])
def test_nothing_private_is_shown(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert not re.findall(
        r"^ *(?:from fedpace[\w.]*\._\w+ import|from fedpace[\w.]* import .*\b_\w+)", text, flags=re.M
    )
