"""Which of a scheme's settings is the best, found without running the bad ones to their ends."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from grid.cells import LEVELS, Cell, Level
from grid.economy import Economy
from grid.runs import FullJob, Job, Row, full_participation, run
from grid.schemes import BASELINE, SERVER_RATE, Scheme
from grid.store import Rows, spread
from grid.tuning import SEEDS, Tuned, full_key, key

CUT = 10.0
"""Times as long as the yardstick takes in a cell, after which a setting is not run on. Until then, every one runs."""
SURVIVORS = 2
"""Settings that go on after the first heat."""
HEATS = ((SEEDS[0], False), (SEEDS[1], True), (SEEDS[0], True), (SEEDS[1], False))
"""Seed, and whether slow clients hold the rare data. A short tuning has the first two."""
COSTLY = ("delayhet-sampling", "delayhet-transport")
"""Schemes that take minutes to choose clients: tuned after all others."""
FACTORS = (1 / 3, 3.0)


@dataclass(frozen=True)
class Race:
    """The settings of one scheme, on a task: under all its delay models, since blind schemes train for all at once."""

    scheme: Scheme
    cells: tuple[Cell, ...]
    rates: Mapping[str, float]
    """Step size, by cell."""
    targets: Mapping[int, Any]
    """By seed."""
    pars: Mapping[tuple[str, int], float]
    """Seconds that random takes, by cell and seed."""
    known: Mapping[tuple[Any, ...], Row]
    """Rows of earlier sittings."""
    factors: bool = False
    heats: int = len(HEATS)
    around: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """By delay model: settings to start from, in place of all; only the server's step size is tuned."""
    bounds: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Seconds, by cell and seed, beyond which it does not matter which setting is the best."""


@dataclass(frozen=True)
class Result:
    """What a race found."""

    rows: list[Row]
    """Of this sitting."""
    best: dict[str, dict[str, Any]]
    """By the name of the delay model."""


def race(job: Race) -> Result:
    """Choose the settings of a scheme for each delay model."""
    running = _Running(job)
    rares = {cell.rare for cell in job.cells}
    heats = [heat for heat in HEATS if heat[1] in rares][: job.heats]
    best: dict[str, dict[str, Any]] = {}
    order: list[Scheme] = []
    for group in running.groups:
        listed = [job.scheme.given(options) for options in job.around.get(group) or job.scheme.choices()]
        order = [*(choice for choice in order if choice in listed), *(each for each in listed if each not in order)]
        choices = list(listed)
        if not heats:
            best[group] = running.said(listed[0], [], group, heats)
            continue
        if len(job.scheme.choices()) > 1:
            # What was good under other delays runs first, so that worse settings end sooner. It decides nothing.
            for choice in order:
                running.play(choice, *heats[0], group, running.place(choices, group, heats))
            order = running.leading(listed, group, heats[:1])
            while others := _with_server_rates(order[0], choices):
                choices += others
                for choice in others:
                    running.play(choice, *heats[0], group, running.place(choices, group, heats))
                before, order[0] = order[0], running.leading(choices, group, heats[:1])[0]
                if order[0] == before:
                    break
            order = running.leading(listed, group, heats[:1])
        going = running.leading(choices, group, heats[:1])[:SURVIVORS]
        for choice in going:
            for place, (seed, rare) in enumerate(heats):
                last = place == len(heats) - 1
                running.play(choice, seed, rare, group, running.left(choice, going, group, heats) if last else math.inf)
        chosen = running.leading(going, group, heats)[0]
        if job.factors:
            others = [chosen.given(chosen.options, factor) for factor in FACTORS]
            for other in others:
                for seed, rare in heats:
                    running.play(other, seed, rare, group)
            choices += others
            chosen = running.leading([chosen, *others], group, heats)[0]
        best[group] = running.said(chosen, choices, group, heats)
    return Result(running.rows, best)


def _with_server_rates(scheme: Scheme, known: Sequence[Scheme]) -> list[Scheme]:
    """Return a setting with the server's step size halved and doubled, unless it is known, perhaps as the default."""

    def rule(choice: Scheme) -> tuple[Any, float]:
        return choice.selector(100), choice.options.get(SERVER_RATE, 1.0)

    tried = [rule(each) for each in known]
    return [other for options in scheme.with_server_rates() if rule(other := scheme.given(options)) not in tried]


class _Running:
    """The runs of a race: those of earlier sittings, and new ones."""

    def __init__(self, job: Race) -> None:
        self._job = job
        self.groups = list(dict.fromkeys(cell.delays.name for cell in job.cells))
        self.rows: list[Row] = []
        self._found: dict[tuple[Any, ...], Row] = dict(job.known)

    def play(self, choice: Scheme, seed: int, rare: bool, group: str, limit: float = math.inf) -> None:
        """Run a setting under a delay model, if it was not; it ends when it cannot hold the hard target by `limit`.

        A setting that trains the same under all delay models is run under all of them at once, without the limit.
        """
        job = self._job
        blind = choice.blind("charged")
        cells = [cell for cell in job.cells if cell.rare == rare and (blind or cell.delays.name == group)]
        due = [cell for cell in cells if self._key(choice, cell, seed) not in self._found]
        together = [[cell] for cell in due]
        if blind:
            limit = math.inf
            rates = {job.rates[cell.name] for cell in due}
            together = [[cell for cell in due if job.rates[cell.name] == rate] for rate in sorted(rates)]
        for each in together:
            names = [cell.name for cell in each]
            for row in run(
                Job(
                    choice,
                    tuple(each),
                    job.rates[each[0].name] * choice.factor,
                    seed,
                    job.targets[seed],
                    pars={name: job.pars[name, seed] for name in names if (name, seed) in job.pars},
                    cuts={name: min(limit, job.bounds.get((name, seed), math.inf)) for name in names},
                )
            ):
                self.rows.append(row)
                self._found[key(row)] = row

    def place(self, choices: Sequence[Scheme], group: str, heats: Sequence[tuple[int, bool]]) -> float:
        """Return the time of the last setting so far that would go on after the first heat: slower ones are out."""
        going = SURVIVORS if len(heats) > 1 else 1
        times = [self._times(choice, group, heats[:1]).values() for choice in choices]
        held = sorted(seconds for by in times for seconds in by if isinstance(seconds, float))
        return held[going - 1] if len(held) >= going else math.inf

    def left(self, choice: Scheme, going: Sequence[Scheme], group: str, heats: Sequence[tuple[int, bool]]) -> float:
        """Return how long a setting may take in the last heat if it is to be the best of those that go on."""
        limit = math.inf
        earlier = list(self._times(choice, group, heats[:-1]).values())
        for other in going:
            times = list(self._times(other, group, heats).values())
            if other != choice and all(isinstance(seconds, float) for seconds in times):
                if not all(isinstance(seconds, float) for seconds in earlier):
                    return 0.0  # it missed where the other held
                spare = sum(map(math.log, times)) - sum(map(math.log, earlier))  # type: ignore[arg-type]
                limit = min(limit, math.exp(spare))
        return limit

    def leading(self, choices: Sequence[Scheme], group: str, heats: Sequence[tuple[int, bool]]) -> list[Scheme]:
        """Return settings by how well they did: fewest misses of the hard target first, then the shortest times.

        If no setting holds the hard target, the easy one decides in the same way. One that diverged comes after others;
        ties are as listed.
        """

        def cost(choice: Scheme) -> tuple[float, ...]:
            found: list[float] = []
            for level in reversed(LEVELS):
                times = self._times(choice, group, heats, level).values()
                met = [math.log(seconds) for seconds in times if isinstance(seconds, float)]
                found += [len(times) - len(met), math.exp(sum(met) / len(met)) if met else math.inf]
            return *found, sum(seconds == "diverged" for seconds in times)

        return sorted(choices, key=cost)

    def said(
        self, chosen: Scheme, tried: Sequence[Scheme], group: str, heats: Sequence[tuple[int, bool]]
    ) -> dict[str, Any]:
        """Return what is written down: what was chosen, and how long every run of everything that was tried took."""
        return {
            "options": dict(chosen.options),
            "factor": chosen.factor,
            "tried": [
                {"options": dict(each.options), "factor": each.factor, "seconds": times}
                for each in tried
                if (times := {k: v for k, v in self._times(each, group, heats).items() if v != "not run"})
            ],
        }

    def _times(
        self, choice: Scheme, group: str, heats: Sequence[tuple[int, bool]], level: Level = "hard"
    ) -> dict[str, float | str]:
        found: dict[str, float | str] = {}
        for seed, rare in heats:
            for cell in self._job.cells:
                if cell.rare == rare and cell.delays.name == group:
                    row = self._found.get(self._key(choice, cell, seed))
                    where = f"{'rare' if rare else 'independent'}, {seed}"
                    seconds = None if row is None else row[level]["seconds"]
                    found[where] = seconds or ("not run" if row is None else row["status"])
        return found

    def _key(self, choice: Scheme, cell: Cell, seed: int) -> tuple[Any, ...]:
        rate = self._job.rates[cell.name] * choice.factor
        options = json.dumps(dict(choice.options), sort_keys=True)
        return cell.name, choice.label, options, seed, rate, "charged"


def tune_options(
    cells: Sequence[Cell],
    schemes: Sequence[Scheme],
    folder: Path,
    processes: int,
    *,
    tuned: Tuned,
    factors: bool = False,
    heats: int = len(HEATS),
    around: str = "",
    give_up: float = CUT,
    yardstick: Scheme,
    recorded: Sequence[Row] = (),
) -> None:
    """Race the settings of every scheme on every task, and write down which is the best.

    Every setting runs until it holds the hard target, or until it is `give_up` times as slow as the yardstick. If no
    setting holds it, the time to the easy target decides. How long the yardstick takes is the median of its `recorded`
    rows, or is found out.
    """
    targets = Rows(folder / "targets.jsonl", full_key)
    tried = Rows(folder / "tuning.jsonl", key)
    tasks = {cell.task.name: cell.task for cell in cells}.values()
    full = [FullJob(task, tuned.reference(task), seed) for task in tasks for seed in SEEDS]
    due = [job for job in full if (job.task.name, job.rate, job.seed) not in targets]
    for row in spread(full_participation, due, processes):
        targets.add(row)
    bounds: dict[tuple[str, int], float] = {}
    if give_up:
        held = Economy.of(recorded, yardstick, cells, tuned, give_up).held
        bounds = {(name, seed): give_up * median(by.values()) for name, by in held.items() for seed in SEEDS}
        rest = [cell for cell in cells if cell.name not in held]
        bounds.update(_bounds(rest, tuned, targets, tried, yardstick, give_up, processes))
    races = []
    for task in tasks:
        here = tuple(cell for cell in cells if cell.task is task)
        rates = {cell.name: tuned.rate(cell) for cell in here}
        aims = {seed: targets.rows[task.name, tuned.reference(task), seed]["targets"] for seed in SEEDS}
        pars = {
            (row["cell"], row["seed"]): row["hard"]["seconds"]
            for row in tried.rows.values()
            if row["scheme"] == BASELINE and rates.get(row["cell"]) == row["lr"] and row["hard"]["seconds"]
        }
        for scheme in schemes:
            if len(scheme.choices()) > 1 and scheme.runs_on(task.data):
                # A row for other targets than those of now says nothing.
                known: dict[Any, dict[str, Any]] = {
                    name: row
                    for name, row in tried.rows.items()
                    if row["scheme"] == scheme.label
                    and row["cell"] in rates
                    and math.isclose(row["hard"]["target"], aims[row["seed"]]["hard"])
                }
                start = tuned.chosen_on(around, scheme.label)
                races.append(Race(scheme, here, rates, aims, pars, known, factors, heats, start, bounds))
    races.sort(key=lambda job: job.scheme.name in COSTLY)
    for result, job in spread(_race, races, processes):
        for row in result.rows:
            tried.add(row)
        for delays, found in result.best.items():
            cell = next(cell for cell in job.cells if cell.delays.name == delays)
            tuned.keep_options(cell, job.scheme.label, found)
        spent = sum(row["cpu_seconds"] for row in result.rows)
        chosen = {delays: found["options"] for delays, found in result.best.items()}
        print(f"{job.cells[0].task.name} {job.scheme.label}: {chosen}, {spent:.0f} CPU s", flush=True)


def _bounds(
    cells: Sequence[Cell],
    tuned: Tuned,
    targets: Rows,
    tried: Rows,
    yardstick: Scheme,
    times: float,
    processes: int,
) -> dict[tuple[str, int], float]:
    """Return so many times the seconds that the yardstick takes, by cell and seed, which is run where it was not."""
    due = []
    found: dict[tuple[str, int], float] = {}
    for cell in cells:
        for seed in SEEDS:
            rate, options = tuned.rate(cell), json.dumps(dict(yardstick.options), sort_keys=True)
            row = tried.rows.get((cell.name, yardstick.label, options, seed, rate, "charged"))
            if row is None:
                aims = targets.rows[cell.task.name, tuned.reference(cell.task), seed]["targets"]
                due.append(Job(yardstick, (cell,), rate, seed, aims))
            elif row["hard"]["seconds"]:
                found[cell.name, seed] = times * row["hard"]["seconds"]
    for rows in spread(run, due, processes):
        for row in rows:
            tried.add(row)
            if row["hard"]["seconds"]:
                found[row["cell"], row["seed"]] = times * row["hard"]["seconds"]
    return found


def _race(job: Race) -> tuple[Result, Race]:
    return race(job), job
