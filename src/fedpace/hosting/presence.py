"""Who joins a live federation, with what it says of itself, and who is forgotten."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from time import monotonic

import numpy as np

from fedpace._base.checks import above
from fedpace._base.errors import InputError
from fedpace._base.names import printable
from fedpace.core.coordinator import Coordinator
from fedpace.core.types import Need
from fedpace.hosting.reader import Reader
from fedpace.hosting.replies import Note

FORGET = 7 * 86_400.0
FORGET_NAMELESS = 600.0
"""Seconds after which a client is forgotten that has no name of its own: when it comes back, it is another."""


class Presence:
    """The comings and goings of one coordinator's clients.

    Args:
        coordinator: whose.
        reader: what it remembers of clients goes with them.
        log: where warnings go.
        forget_seconds: clients that were not connected for so long are forgotten.
    """

    def __init__(
        self, coordinator: Coordinator, reader: Reader, log: logging.Logger, forget_seconds: float = FORGET
    ) -> None:
        above(forget_seconds, 0, "forget_seconds")
        self._coordinator, self._reader, self._log = coordinator, reader, log
        self._patience = forget_seconds
        self._until = dict.fromkeys(map(str, coordinator.clients), monotonic() + forget_seconds)
        """When each is forgotten that is not seen again."""

    def update(self, present: Mapping[str, Note]) -> None:
        """Let newcomers join, and forget who is gone; who lacks something that cannot wait is left out."""
        self._forget(present)
        self._settle_classes(present)
        known = set(self._coordinator.clients)
        # Ordered by name, short ones first: rows must not depend on who connected first.
        for name in sorted(present.keys() - known, key=lambda name: (len(name), name)):
            try:
                self._join(name, present[name])
            except InputError as problem:
                self._log.warning("fedpace: %r is not used: %s", name, printable(str(problem)))

    def _join(self, name: str, note: Note) -> None:
        wanted, needs = self._coordinator.wanted, self._coordinator.policy.needs
        labels = note.labels if Need.LABELS in wanted else None
        if self._coordinator.settings.shares == "samples" and math.isnan(note.samples):
            raise InputError("it did not say how many samples it holds, which shares='samples' needs")
        if Need.LABELS in needs and labels is None:
            self._reader.lacks(name, Need.LABELS)
        samples = None if math.isnan(note.samples) else [note.samples]
        self._coordinator.join([name], samples=samples, labels=None if labels is None else [labels])

    def _forget(self, present: Mapping[str, Note]) -> None:
        """Let clients leave that were not seen for long: a roster must not grow with every reconnection."""
        now = monotonic()
        nameless = min(FORGET_NAMELESS, self._patience)
        self._until |= {n: now + (self._patience if note.name == n else nameless) for n, note in present.items()}
        gone = {name for name, until in self._until.items() if now > until}
        self._coordinator.leave([name for name in gone if name in self._coordinator.ledger])
        self._reader.forget(gone)
        self._until = {name: until for name, until in self._until.items() if name not in gone}

    def _settle_classes(self, present: Mapping[str, Note]) -> None:
        """Count as many classes as most clients do: the first to join must not lock the others out."""
        tables = self._coordinator.ledger.tables
        counts = Counter(note.labels.size for note in present.values() if note.labels is not None)
        if "labels" not in tables or not counts:
            return
        classes, votes = counts.most_common(1)[0]
        if classes != tables["labels"].shape[1] and votes > np.isfinite(tables["labels"]).all(axis=1).sum():
            self._log.warning("fedpace: most clients count %d classes: other histograms are forgotten", classes)
            del tables["labels"]
