"""A contestant's side of the contest: it plays as many rounds as a line of its input says, and answers with one line.

Contestants stay alive between turns, so that they can be interleaved round by round without paying for their start.
"""

from __future__ import annotations

import json
import os
import sys
import time


class Turns:
    """Rounds on demand. What else is printed goes to standard error, so that answers stay apart."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._ready = False
        self._wanted = self._left = 0
        self._started = 0.0

    def begin(self) -> bool:
        """Wait until a round is wanted; False: the contest is over."""
        if not self._ready:
            self._ready = True
            self._answer({"ready": True})
        if self._left == 0:
            line = sys.stdin.readline().strip()
            if not line:
                return False
            self._wanted = self._left = int(line)
            self._started = time.perf_counter()
        return True

    def end(self, accuracy: float) -> None:
        """Count a round; after the last one that was wanted, say what a round took and how well the model does."""
        self._left -= 1
        if self._left == 0:
            seconds = (time.perf_counter() - self._started) / self._wanted
            self._answer({"seconds": seconds, "accuracy": accuracy})

    def _answer(self, answer: dict[str, object]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
