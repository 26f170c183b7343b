"""A long run of a large fleet whose clients come and go: memory, and time per decision; prints one JSON object.

    python benchmarks/churn.py                                   100,000 clients, 1,000 rounds, 10 % churn
    python benchmarks/churn.py --clients 1000 --rounds 50 --schemes random

In every round a tenth of the clients leave for good and as many new ones join, so that after a thousand rounds a
hundred times as many clients were there as the roster holds. Nothing is trained: clients answer with a delay, a loss,
the sketch of an update and, where the scheme asks for it, a moment. A tenth of the answers fails. A decision is
everything that the server does between two rounds except letting clients join and leave, which is counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedpace import Outcome, Session, make_selector, stream
from fedpace.moments import MomentBank

SCHEMES: dict[str, dict[str, Any]] = {
    "random": {"k": 20},
    "oort": {"k": 20},
    "pace": {"max_clients": 50},
    "pace-all": {"max_clients": 50},
}
WIDTH, SKETCH, RIDGE = 8, 16, 0.1
PARTS = 10


def resident() -> float:
    """Return the memory in use now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def play(scheme: str, clients: int, rounds: int, churn: float) -> dict[str, Any]:
    """Run one scheme, and return its figures in `PARTS` parts of the run."""
    rng = stream(0, "churn", scheme)
    newest, leaving = clients, int(churn * clients)
    name, quota = scheme.removesuffix("-all"), max(20, leaving) if scheme.endswith("-all") else 20
    moments = MomentBank.sketched(0, ridge=RIDGE, dimension=64) if name == "pace" else None
    session = Session(make_selector(name, **SCHEMES[scheme]), warmup="lazy", warmup_quota=quota, moments=moments)
    session.join(range(clients), samples=[10.0] * clients, delays=rng.lognormal(3.0, 1.0, clients))
    deciding, roster, memory = [], [], []
    for number in range(rounds):
        began = time.process_time()
        gone = rng.choice(clients, leaving, replace=False)
        ids = session.clients
        session.leave([ids[row] for row in gone.tolist()])
        session.join(range(newest, newest + leaving), samples=[10.0] * leaving, delays=rng.lognormal(3.0, 1.0, leaving))
        newest += leaving
        roster.append(time.process_time() - began)
        began = time.process_time()
        selection = session.select(now=float(number))
        spent = time.process_time() - began
        outcomes = [answer(client, rng, scheme) for client in selection.clients]
        began = time.process_time()
        session.observe(outcomes)
        deciding.append(spent + time.process_time() - began)
        memory.append(resident())
    parts = [part for part in np.array_split(np.arange(rounds), min(PARTS, rounds)) if part.size]
    by_part = [float(np.median(np.array(deciding)[part])) for part in parts]
    held = [float(np.array(memory)[part].max()) for part in parts]
    return {
        "scheme": scheme,
        "clients": clients,
        "rounds": rounds,
        "clients_seen": newest,
        "decision_ms": round(1e3 * float(np.median(deciding)), 1),
        "decision_ms_99th": round(1e3 * float(np.quantile(deciding, 0.99)), 1),
        "decision_ms_by_tenth": [round(1e3 * seconds, 1) for seconds in by_part],
        "join_and_leave_ms": round(1e3 * float(np.median(roster)), 1),
        "resident_mib_by_tenth": [round(mib) for mib in held],
        "last_tenth_over_second": {
            "decision": round(by_part[-1] / by_part[min(1, len(by_part) - 1)], 2),
            "memory": round(held[-1] / held[min(1, len(held) - 1)], 3),
        },
    }


def answer(client: Any, rng: np.random.Generator, scheme: str) -> Outcome:
    """Return what a client reports."""
    seconds = float(rng.lognormal(3.0, 1.0))
    if rng.random() < 0.1:
        return Outcome(client, seconds, False)
    moment = rng.normal(size=(4, WIDTH)) / 2.0 if scheme.startswith("pace") else None
    return Outcome(client, seconds, True, float(rng.random()), 10.0, moment, 1.0 + rng.normal(size=SKETCH))


def main() -> None:
    """Run the schemes, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--churn", type=float, default=0.1, help="part of the clients that are replaced per round")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    options = parser.parse_args()
    runs = [play(name, options.clients, options.rounds, options.churn) for name in options.schemes.split(",")]
    print(json.dumps({"benchmark": "churn", "cores": os.cpu_count(), "churn": options.churn, "runs": runs}, indent=2))


if __name__ == "__main__":
    main()
