"""Seconds and memory of one server step of `memory-corrected`, against one plain average of the same answers.

    python benchmarks/memory_step.py                                     1 M and 10 M parameters, 50, 200, 1,000 clients
    python benchmarks/memory_step.py --also 100000000x50                 these, and 100 M parameters with 50 clients
    python benchmarks/memory_step.py --memory float32 --memory-gib 64 --clients 50
    python benchmarks/memory_step.py --folder /var/tmp/rows              rows in mapped files

Every pair of sizes is measured in a process of its own. The memory is filled with random rows for all clients, as far
as `--memory-gib` has room. Then `--steps` steps are made, each with `--answers` fresh answers in single precision and
`--late` late ones. The time of a step is the median over the steps; both times include the reading of the answers. The
plain average is `fedpace.server.average` with the same answers, part of the same process, between the steps. It runs in
one thread, the rule in as many as there are cores, up to four. `cpu_` is processor time, of all threads together.

`peak` is the most memory that the process had during a step of the rule (Linux: `VmHWM`), `before` what it had when the
rows, two references, the answers and the model were there, and nothing else. `beyond` is the difference, in models of 4
bytes per parameter: the next model, the sum of the rows, the momentum, and temporary copies. `kept` is the part that is
still there after the last step. Memory that the allocator holds for later is returned before each step. Prints a JSON
object with a line per pair.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.core.server_rule import Gather, ServerRule, Source, Stack
from fedpace.numerics.parts import threads
from fedpace.server._row_store import RowStore
from fedpace.server.average import Average
from fedpace.server.memory_corrected import MemoryCorrected

MIB = 2**20


def main() -> None:
    """Measure every pair of sizes in its own process, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", default="1000000,10000000")
    parser.add_argument("--clients", default="50,200,1000")
    parser.add_argument("--also", default="", help="further pairs, as PARAMETERSxCLIENTS,...")
    parser.add_argument("--answers", type=int, default=10)
    parser.add_argument("--late", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--memory", default="4bit")
    parser.add_argument("--memory-gib", type=float, default=8.0)
    parser.add_argument("--folder", default="")
    parser.add_argument("--alone", action="store_true", help="measure one pair in this process")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(options)))
        return
    rows = []
    pairs = [(length, clients) for length in options.parameters.split(",") for clients in options.clients.split(",")]
    for length, clients in [*pairs, *(pair.split("x") for pair in options.also.split(",") if pair)]:
        given = ["--parameters", length, "--clients", clients, "--answers", options.answers, "--late", options.late]
        given += ["--steps", options.steps, "--memory", options.memory, "--memory-gib", options.memory_gib]
        given += ["--folder", options.folder, "--alone"]
        done = subprocess.run(
            [sys.executable, __file__, *map(str, given)], check=True, stdout=subprocess.PIPE, text=True
        )
        rows.append(json.loads(done.stdout))
        print(rows[-1], file=sys.stderr, flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    ).stdout.strip()
    facts = {
        "benchmark": "memory_step",
        "command": " ".join(["python", "benchmarks/memory_step.py", *sys.argv[1:]]),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "threads": threads(),
    }
    print(json.dumps({**facts, "rows": rows}, indent=1))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of one pair of sizes."""
    length, clients = int(options.parameters), int(options.clients)
    rule = MemoryCorrected(
        reach=6.0, memory=options.memory, memory_gib=options.memory_gib, memory_folder=options.folder
    )
    store = RowStore.choose(rule.memory, length, clients, gib=rule.memory_gib, folder=rule.memory_folder)
    state = filled(rule, store, length, min(clients, store.room))
    rng = np.random.default_rng(0)
    count = options.answers + options.late
    sent = [np.zeros(length, np.float32), np.full(length, 0.001, np.float32)]
    answers = [some(rng, length) for _ in range(count)]
    model: Any = np.full(length, 0.001, np.float32)
    ctypes.CDLL(None).malloc_trim(0)
    before, most = resident("VmRSS"), 0
    ours, plain, work, plain_work = [], [], [], []
    for step in range(options.steps):
        places = [(step * options.answers + place) % clients for place in range(count)]
        began, worked = time.perf_counter(), time.process_time()
        average(Average(), None, model, answers, sent, places, options, step)
        plain.append(time.perf_counter() - began)
        plain_work.append(time.process_time() - worked)
        ctypes.CDLL(None).malloc_trim(0)
        forget_peak()
        began, worked = time.perf_counter(), time.process_time()
        model, state = average(rule, state, model, answers, sent, places, options, step)
        ours.append(time.perf_counter() - began)
        work.append(time.process_time() - worked)
        most = max(most, resident("VmHWM"))
    seconds, other = statistics.median(ours), statistics.median(plain)
    return {
        "parameters": length,
        "clients": clients,
        "remembered": state.remembered,
        "bits": state.memory_bits,
        "answers": options.answers,
        "late": options.late,
        "seconds": round(seconds, 4),
        "plain_seconds": round(other, 4),
        "times": round(seconds / other, 2),
        "cpu_seconds": round(statistics.median(work), 4),
        "cpu_times": round(statistics.median(work) / statistics.median(plain_work), 2),
        "memory_mib": round(state.memory_bytes / MIB),
        "answers_mib": round(4 * length * (count + 2) / MIB),
        "before_mib": round(before / MIB),
        "peak_mib": round(most / MIB),
        "beyond": round((most - before) / (4 * length), 1),
        "kept": round((resident("VmRSS") - before) / (4 * length), 1),
    }


def filled(rule: MemoryCorrected, store: RowStore, length: int, clients: int) -> Any:
    """Return a state that remembers so many clients. Their sum is not known yet: the first step computes it."""
    rng = np.random.default_rng(1)
    pattern = store.keep(some(rng, length).astype(np.float64))
    rows = []
    for _ in range(clients):
        row = store.blank()
        row[:] = pattern
        rows.append(row)
    state = rule.init(np.zeros(length))
    references = [store.keep(np.zeros(length), store.reference_bits) for _ in range(2)]
    same: dict[str, Any] = {
        name: (value,) * clients
        for name, value in {
            "remembered_versions": 0,
            "remembered_shares": 1 / clients,
            "remembered_scales": 0.0,
            "remembered_paths": 0.0,
            "remembered_drifts": -1.0,
            "remembered_lengths": 0.01 * length**0.5,
            "remembered_responses": 1.0,
        }.items()
    }
    return replace(
        state,
        offsets=Stack.none(np.zeros(length)).of(rows),
        references=Stack.none(np.zeros(length)).of(references),
        remembered_clients=tuple(range(clients)),
        remembered=clients,
        reference_versions=(-1, 0),  # as in every step: one that late answers need, and one that none needs any more
        reference_scales=(0.0,) * 2,
        reference_paths=(0.0,) * 2,
        reference_squares=(1.0,) * 2,
        reference_lengths=(0.01 * length**0.5,) * 2,
        memory_bits=store.bits,
        **same,
    )


def some(rng: np.random.Generator, length: int) -> Any:
    """Return a vector of small numbers."""
    return rng.standard_normal(length, dtype=np.float32) * np.float32(0.01)


def average(
    rule: ServerRule[Any],
    state: Any,
    model: Any,
    answers: list[Any],
    sent: list[Any],
    clients: list[int],
    options: argparse.Namespace,
    step: int,
) -> tuple[Any, Any]:
    """Make one step, from the answers on."""
    gather = Gather(rule, np.zeros(len(model)), mean=False)
    total = int(options.clients)
    for place, (answer, client) in enumerate(zip(answers, clients, strict=True)):
        fresh = place < options.answers
        weight = 1 / options.answers if fresh else 0.0
        version = step + 1 if fresh else step
        gather.add(answer, sent[fresh], weight, Source(client, version, 1 / total))
    found = gather.answers(step + 1, frozenset({step, step + 1}), lambda _: 1 / total)
    assert found is not None
    return rule.apply(state, model, replace(found, clients=total))


def resident(name: str) -> int:
    """Return the bytes that this process has in memory (`VmRSS`), or had at most since `forget_peak` (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def forget_peak() -> None:
    """Start to measure the peak anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


if __name__ == "__main__":
    main()
