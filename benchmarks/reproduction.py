"""Writes the tables of docs/reproduction.md from the results that come with fedpace, and those from a folder of runs.

python benchmarks/reproduction.py                        the tables, from src/fedpace/reproduce/results.json
python benchmarks/reproduction.py --take runs/reproduce  after taking over what `fedpace reproduce` left there
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fedpace.reproduce import overhead, rendering, tables
from fedpace.reproduce.headline import headline_table
from fedpace.reproduce.outcomes import Results
from fedpace.reproduce.plans import Request
from fedpace.reproduce.tables import Table

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reproduction.md"
RESULTS = ROOT / "src" / "fedpace" / "reproduce" / "results.json"


def shown(results: Results) -> dict[str, Table]:
    """Return the tables of the document by the names that it has for their places."""
    request = Request("quick")
    found = {
        "headline": headline_table(request, results),
        "table1": tables.cell_table("table1", request, results),
        "table2": tables.cell_table("table2", request, results),
        "table3": tables.sweep_table(request, results),
        "motivation": tables.case_table(request, results),
        "constants": tables.constant_table(request, results),
    }
    if "overhead" in results.facts:
        found["overhead"] = overhead.table(results.facts["overhead"])
    return found


def filled(text: str, results: Results) -> str:
    """Return the document with every table as the results have it."""
    for name, table in shown(results).items():
        block = f"<!-- {name} -->\n{rendering.markdown(table)}<!-- end -->"
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Take over results where asked, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, help="folder of `fedpace reproduce`, whose results.json is taken over")
    given = parser.parse_args()
    if given.take:
        Results.read(given.take / "results.json").write(RESULTS)
    DOCUMENT.write_text(filled(DOCUMENT.read_text(encoding="utf-8"), Results.read(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
