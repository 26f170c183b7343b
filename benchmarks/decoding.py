"""Seconds to decode a public data set from parquet into a fresh cache, and to open it from there.

    python benchmarks/decoding.py mnist [--data DIR]

Prints one JSON object. Each is measured in a process of its own, imports included, and split into wall and CPU time: on
a machine that is busy with other things only the latter says something about the work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from fedpace.data import hub

LOAD = """
import json, sys, time
start = time.perf_counter(), time.process_time()
from fedpace.data import hub
imported = time.perf_counter(), time.process_time()
decoded = hub.load(sys.argv[1], sys.argv[2])
end = time.perf_counter(), time.process_time()
print(json.dumps({
    "rows": {split: len(rows) for split, rows in decoded.splits.items()},
    "load_wall_s": round(end[0] - imported[0], 4),
    "load_cpu_s": round(end[1] - imported[1], 4),
    "import_fedpace_wall_s": round(imported[0] - start[0], 3),
}))
"""


def load(name: str, folder: str, cache: str) -> dict[str, object]:
    """Load in a fresh process."""
    environment = {**os.environ, "FEDPACE_CACHE": cache, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, name, folder], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=hub.SOURCES)
    parser.add_argument("--data", default="", help="folder of parquet files (default: where fedpace looks)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        first = load(arguments.name, arguments.data, cache)
        second = load(arguments.name, arguments.data, cache)
    result = {
        "benchmark": "decoding",
        "data": arguments.name,
        "from_parquet": first,
        "from_the_cache": second,
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
