"""A federation in which some clients report anything, come and go at any moment, and the clock is told anything.

What a coordinator refuses must be refused where it came in: deciding and stepping go on whatever clients do.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from junk import junk

from fedpace import Coordinator, FedpaceError, Outcome, Settings
from fedpace._base import registry
from fedpace.core.aggregation import Trained

FIELDS = ("seconds", "finished", "loss", "samples", "moment", "update", "measured")
EVENTS = 10


def settings(rng):
    """Return how a coordinator is set up."""
    return Settings(
        seed=rng.randrange(9),
        shares=rng.choice(["uniform", "samples"]),
        warmup=rng.choice(["full", "lazy"]),
        warmup_wait=rng.choice([1.0, 0.5]),
        warmup_trains=rng.random() < 0.3,
        learn_delays=rng.random() < 0.7,
        deadline=rng.choice([math.inf, 3.0]),
        moments_every=rng.choice([0, 1]),
        hear_late=rng.random() < 0.5,
    )


class Federation:
    """One coordinator and its clients, of which some lie."""

    def __init__(self, rng):
        name = rng.choice(list(registry.selectors.names()))
        known = {item.name for item in dataclasses.fields(registry.selectors[name])}
        self.rng, self.noise = rng, np.random.default_rng(rng.randrange(10**6))
        few = {option: 1 for option in ("k", "m") if option in known}
        self.made = Coordinator(registry.selectors.make(name, **few), settings(rng))
        self.now, self.newest = 0.0, 0
        self.join(rng.choice([1, 2, 3, 6]))
        self.liars = {client for client in self.made.clients if rng.random() < 0.4}

    def join(self, count):
        """Let new clients join."""
        ids = range(self.newest, self.newest + count)
        self.newest += count
        self.enter(list(ids))

    def enter(self, ids):
        """Let these join, new or not."""
        delays = [self.rng.choice([0.0, 1.0, 50.0]) for _ in ids]
        self.made.join(
            ids, samples=[float(self.rng.randrange(2)) for _ in ids], delays=delays, labels=[[1, 0]] * len(ids)
        )

    def leave(self):
        """Let somebody leave, and perhaps come back at once."""
        if len(self.made) > 1:
            gone = self.rng.choice(self.made.clients)
            self.made.leave([gone])
            if self.rng.random() < 0.5:
                self.enter([gone])

    def play(self):
        """Play some events: only what a client sends may be refused."""
        for _ in range(EVENTS):
            due = self.made.due(self.now)
            if due.step is not None:
                if self.rng.random() < 0.3:
                    self.leave()
                lengths = [self.rng.choice([1.0, 1.0, 0.0, 1e30, math.inf, math.nan]) for _ in due.step.answers]
                answers = [
                    Trained(
                        task, length * np.ones(5), np.zeros(5), {"counters": self.rng.choice([1.0, 1e30, math.inf])}
                    )
                    for (task, _), length in zip(due.step.answers, lengths, strict=True)
                ]
                step, factors, _ = self.made.bound(due.step, answers)
                assert all(0 < factor < 1 for factor in factors.values())
                assert sum(weight for _, weight in step.answers if step.mode == "average") <= 1 + 1e-9
                self.made.stepped(self.now)
            for task in self.made.tasks:
                if self.rng.random() < 0.5:
                    self.answer(task)
            if self.rng.random() < 0.2:
                self.leave()
            if self.rng.random() < 0.1:
                self.join(1)
            self.refused(lambda: self.made.due(self.rng.choice([self.made.now - 1, math.nan, "3", 10**400])))
            self.refused(lambda: self.made.receive(junk(self.rng), Outcome(0, seconds=1.0), self.now))

    def answer(self, task):
        """Answer a task, and then once more."""
        self.now += self.rng.choice([0.0, 0.1, 10.0])
        wide = task.client in self.liars and self.rng.random() < 0.3
        facts = {
            "seconds": self.now - task.began,
            "loss": float(abs(self.noise.normal())),
            "moment": self.noise.normal(size=(4, 5 if wide else 3)),
            "update": self.noise.normal(size=6 if wide else 4),
        }
        if task.client in self.liars:
            facts |= {self.rng.choice(FIELDS): junk(self.rng) for _ in range(self.rng.randrange(3))}
        if not self.refused(lambda: self.made.receive(task.id, Outcome(task.client, **facts), self.now)):
            assert not self.made.receive(task.id, Outcome(task.client, seconds=1.0), self.now), "it answers once"
        else:
            self.made.lost(task.id, self.now)

    @staticmethod
    def refused(call):
        """Whether an error of ours came."""
        try:
            call()
        except FedpaceError:
            return True
        return False
