"""Contestants of one benchmark, interleaved turn by turn on one machine.

Identical programs differ by a third from run to run here, with whatever else the machine does. So all contestants
stay alive and take turns of a few rounds, in an order drawn anew each time; a ratio is the median of the ratios within
turns. Who is not playing is stopped by a signal, since an idle simulator may poll.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

PATIENCE = 600
"""Seconds in which a turn must be over."""


@dataclass(frozen=True)
class Contestant:
    """A program that plays rounds on demand (`contestants/turns.py`)."""

    name: str
    command: tuple[str, ...]
    rounds: int = 1
    """In a turn."""


@dataclass
class Score:
    """What a contestant did."""

    seconds: list[float] = field(default_factory=list)
    """Of a round, turn by turn."""
    accuracy: list[float] = field(default_factory=list)
    """After the last round of each turn, the first one included, which is not timed."""
    peak_bytes: int = 0
    """Memory of all its processes together, what they share counted once; 0 = not measured."""


def hold(contestants: Sequence[Contestant], *, turns: int, folder: Path, memory: bool = False) -> dict[str, Score]:
    """Let everybody play one round to warm up and then `turns` turns; logs go to `folder`.

    With `memory` the peak memory is measured, which costs time: seconds then mean little.
    """
    rng = random.Random(0)
    players: list[Player] = []
    scores = {contestant.name: Score() for contestant in contestants}
    try:
        for contestant in contestants:
            players.append(Player(contestant, folder, memory=memory))
            players[-1].wait()
            _play(players[-1], 1, scores, "to warm up")
        for turn in range(1, turns + 1):
            for player in rng.sample(players, len(players)):
                answer = _play(player, player.contestant.rounds, scores, f"turn {turn} of {turns}")
                scores[player.contestant.name].seconds.append(answer["seconds"])
    finally:
        for player in players:
            scores[player.contestant.name].peak_bytes = player.stop()
    return scores


def _play(player: Player, rounds: int, scores: dict[str, Score], when: str) -> dict[str, Any]:
    answer = player.play(rounds)
    name = player.contestant.name
    scores[name].accuracy.append(answer["accuracy"])
    say(f"  {when}: {name} {answer['seconds']:.4f} s a round, accuracy {answer['accuracy']:.4f}")
    return answer


def ratio(above: Score, below: Score) -> dict[str, float]:
    """Return how many times longer `above` takes: the median over turns, and the extremes."""
    ratios = [one / other for one, other in zip(above.seconds, below.seconds, strict=True)]
    return {"median": rounded(median(ratios)), "least": rounded(min(ratios)), "most": rounded(max(ratios))}


def rounded(value: float) -> float:
    """Return a value with four digits that count."""
    return float(f"{value:.4g}")


def say(words: str) -> None:
    """Tell the reader what goes on; the result alone is for standard output."""
    print(words, file=sys.stderr, flush=True)


class Player:
    """A contestant's process."""

    def __init__(self, contestant: Contestant, folder: Path, *, memory: bool) -> None:
        self.contestant = contestant
        self._log = folder / f"{contestant.name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                contestant.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "FLWR_HOME": str(folder / "flwr"), "RAY_TMPDIR": str(folder)},
            )
        self._memory = Memory(self._process.pid) if memory else None

    def wait(self) -> None:
        """Wait until it has its data."""
        self._answer()

    def play(self, rounds: int) -> dict[str, Any]:
        """Let it play and rest again."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def stop(self) -> int:
        """End it, with all the processes that it started; return the most memory that they had."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        peak = 0 if self._memory is None else self._memory.stop()
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        return peak

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        alarm = threading.Timer(PATIENCE, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            tail = self._log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.contestant.name} came to an end:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Memory:
    """The most memory that a process and its descendants had together."""

    EVERY = 0.25
    """Seconds between looks: the kernel walks all pages for one, so nobody is timed while this looks."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> int:
        """Look no more, and return the peak in bytes."""
        self._over.set()
        self._thread.join()
        return self.peak

    def _look(self) -> None:
        while not self._over.wait(self.EVERY):
            self.peak = max(self.peak, sum(_proportional_bytes(pid) for pid in _family(self.pid)))


def _family(pid: int) -> set[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
            children.setdefault(parent, []).append(int(folder.name))
    family, new = {pid}, [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        family.update(new)
    return family


def _proportional_bytes(pid: int) -> int:
    """A process's memory, what it shares with n - 1 others counted as an n-th."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it ended while we looked
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
