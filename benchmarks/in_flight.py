"""What a policy without rounds costs the server, by the number of clients at work; prints one JSON object.

    python benchmarks/in_flight.py                       # fedbuff and pace-async, 100, 1,000 and 10,000 at work
    python benchmarks/in_flight.py --sizes 100 --answers 200

The coordinator is played without training: clients answer after long-tailed delays, with a moment the first time and
the sketch of an update each time. Counted is everything between two answers: taking one in, asking the policy, starting
tasks, noting the step. CPU seconds, and the same over the second half of the answers against the first, which says
whether the history makes it slower.
"""

from __future__ import annotations

import argparse
import json
import time
from heapq import heappop, heappush
from typing import Any

from fedpace._base.registry import selectors
from fedpace._base.rng import stream
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings
from fedpace.core.types import Need, Outcome

WIDTH, SKETCH = 8, 16


def play(name: str, clients: int, answers: int) -> dict[str, Any]:
    """Let `clients` work until so many answers have come."""
    rng = stream(0, "in-flight", clients)
    delays = rng.lognormal(3.0, 1.0, clients)
    factors = rng.normal(size=(clients, 4, WIDTH)) / 2.0
    own = rng.normal(size=(clients, SKETCH))
    coordinator = Coordinator(selectors.make(name), Settings(seed=0))
    coordinator.join(range(clients), delays=delays.tolist(), samples=[10.0] * clients)
    queue: list[tuple[float, int, int, bool]] = []
    now, came, steps = 0.0, 0, 0
    spent: list[float] = []
    while came < answers:
        began = time.process_time()
        due = coordinator.due(now)
        if due.step is not None:
            facts = {"square": 9.0 * SKETCH / (steps + 1) ** 2, "disagreement_left": 0.3, "mean_age": 3.0}
            coordinator.stepped(now, facts=facts)
            steps += 1
        spent.append(time.process_time() - began)
        for task in due.tasks:
            client = int(task.client)  # type: ignore[call-overload]
            seconds = delays[client] * rng.lognormal(0.0, 0.2)
            heappush(queue, (now + seconds, task.id, client, Need.MOMENT in task.facts))
        if due:
            continue
        now, task_id, client, moment = heappop(queue)
        outcome = Outcome(
            client,
            float(delays[client]),
            True,
            1.0,
            10.0,
            factors[client] if moment else None,
            (3.0 + own[client] + 0.3 * rng.normal(size=SKETCH)) / (steps + 1.0),
        )
        began = time.process_time()
        coordinator.receive(task_id, outcome, now)
        spent.append(time.process_time() - began)
        came += 1
    half = len(spent) // 2
    later = sum(spent[half:]) / max(sum(spent[:half]), 1e-9)
    return {
        "scheme": name,
        "at_work": clients,
        "answers": came,
        "steps": steps,
        "milliseconds_per_answer": round(1000 * sum(spent) / came, 3),
        "milliseconds_per_step": round(1000 * sum(spent) / max(steps, 1), 2),
        "second_half_over_first": round(later, 2),
    }


def main() -> None:
    """Read the command line and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100,1000,10000", help="clients at work")
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--schemes", default="fedbuff,pace-async")
    options = parser.parse_args()
    rows = [
        play(name, int(size), options.answers)
        for name in options.schemes.split(",")
        for size in options.sizes.split(",")
    ]
    print(json.dumps({"benchmark": "in_flight", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
