"""Writes the tables of docs/reproduction.md and its appendix from the results of fedpace and of a folder of runs.

python benchmarks/reproduction.py                        the tables, from results.json of src/fedpace/reproduce
python benchmarks/reproduction.py --take runs/reproduce  after taking over what `fedpace reproduce` left there

What is taken over replaces all that fedpace had of that profile: run with `--missing` to keep it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fedpace.report.tables import ReportTable, markdown
from fedpace.reproduce import paper_tables as tables
from fedpace.reproduce.command import PACKAGED, overhead_table
from fedpace.reproduce.paper_runs import Request
from fedpace.reproduce.paper_tables import ReproducedResults

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "docs" / "reproduction.md", ROOT / "docs" / "appendix" / "paper-tables.md")
FOLDER = ROOT / "src" / "fedpace" / "reproduce"
AT_SCALE = ("quadratic", "dirichlet-mnist", "rotated-mnist", "dirichlet-fashion-mnist", "rotated-fashion-mnist")
"""Data sets that are run at the paper's scale."""


def packaged() -> tuple[ReproducedResults, ReproducedResults]:
    """Return what comes with fedpace, quick and at the paper's scale."""
    return ReproducedResults.read(FOLDER / PACKAGED["quick"]), ReproducedResults.read(FOLDER / PACKAGED["paper"])


def shown(results: ReproducedResults, at_scale: ReproducedResults) -> dict[str, ReportTable]:
    """Return the tables of the documents by the names that they have for their places."""
    request, full = Request("quick"), Request("paper", AT_SCALE)
    found = {
        "headline": tables.headline_table(request, results),
        "table1": tables.cell_table("table1", request, results),
        "table2": tables.cell_table("table2", request, results),
        "table3": tables.sweep_table(request, results),
        "motivation": tables.case_table(request, results),
        "constants": tables.constant_table(request, results),
        "table1-paper": tables.cell_table("table1", full, at_scale),
        "table2-paper": tables.cell_table("table2", full, at_scale),
    }
    if "overhead" in results.facts:
        found["overhead"] = overhead_table(results.facts["overhead"])
    return found


def filled(text: str, results: ReproducedResults, at_scale: ReproducedResults) -> str:
    """Return a document with every table as the results have it."""
    for name, table in shown(results, at_scale).items():
        block = f"<!-- {name} -->\n{markdown(table)}<!-- end -->".replace("\\", r"\\")
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Take over results where asked, and write the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, help="folder of `fedpace reproduce`, whose results.json is taken over")
    given = parser.parse_args()
    if given.take:
        taken = ReproducedResults.read(given.take / "results.json")
        taken.write(FOLDER / PACKAGED[taken.profile])
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf-8"), *packaged()), encoding="utf-8")


if __name__ == "__main__":
    main()
