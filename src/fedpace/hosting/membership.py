"""The membership of a live federation: connected clients join with their facts, and absent clients are removed."""

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
from fedpace.hosting.replies import Note
from fedpace.hosting.reply_loop import ReplyReader

FORGET_SECONDS = 7 * 86_400.0
FORGET_NAMELESS_SECONDS = 600.0
"""Seconds after which an absent client without a stable name is removed: on return it has another id anyway."""


class Membership:
    """Adds and removes the clients of one coordinator.

    Args:
        coordinator: the coordinator.
        reader: also forgets clients that are removed.
        log: logger for warnings.
        forget_seconds: remove clients that were not connected for this long.
    """

    def __init__(
        self, coordinator: Coordinator, reader: ReplyReader, log: logging.Logger, forget_seconds: float = FORGET_SECONDS
    ) -> None:
        above(forget_seconds, 0, "forget_seconds")
        self._coordinator, self._reader, self._log = coordinator, reader, log
        self._patience = forget_seconds
        self._until = dict.fromkeys(map(str, coordinator.clients), monotonic() + forget_seconds)
        """Client -> time at which it is removed, unless it is seen again."""

    def update(self, present: Mapping[str, Note]) -> None:
        """Add new clients and remove clients absent for too long; `present`: client -> its note.

        Clients without a fact that they must bring when they join are not added; the log says why.
        """
        self._forget(present)
        self._settle_classes(present)
        known = set(self._coordinator.clients)
        # Sort by length and name: rows must not depend on the order of connection.
        for name in sorted(present.keys() - known, key=lambda name: (len(name), name)):
            try:
                self._join(name, present[name])
            except InputError as problem:
                self._log.warning("fedpace: %r is not used: %s", name, printable(str(problem)))

    def _join(self, name: str, note: Note) -> None:
        wanted, needs = self._coordinator.wanted, self._coordinator.policy.needs
        labels = note.labels if Need.LABELS in wanted else None
        if self._coordinator.settings.shares == "samples" and math.isnan(note.samples):
            raise InputError("it did not report its number of samples, which shares='samples' needs")
        if Need.LABELS in needs and labels is None:
            self._reader.warn_missing(name, Need.LABELS)
        samples = None if math.isnan(note.samples) else [note.samples]
        self._coordinator.join([name], samples=samples, labels=None if labels is None else [labels])

    def _forget(self, present: Mapping[str, Note]) -> None:
        """Remove clients that were absent for too long, so that reconnections do not grow the roster."""
        now = monotonic()
        nameless = min(FORGET_NAMELESS_SECONDS, self._patience)
        self._until |= {n: now + (self._patience if note.name == n else nameless) for n, note in present.items()}
        gone = {name for name, until in self._until.items() if now > until}
        self._coordinator.leave([name for name in gone if name in self._coordinator.ledger])
        self._reader.forget(gone)
        self._until = {name: until for name, until in self._until.items() if name not in gone}

    def _settle_classes(self, present: Mapping[str, Note]) -> None:
        """Delete the stored label histograms if they are outvoted by clients with another number of classes."""
        tables = self._coordinator.ledger.tables
        counts = Counter(note.labels.size for note in present.values() if note.labels is not None)
        if "labels" not in tables or not counts:
            return
        classes, votes = counts.most_common(1)[0]
        if classes != tables["labels"].shape[1] and votes > np.isfinite(tables["labels"]).all(axis=1).sum():
            self._log.warning("fedpace: most clients count %d classes: other histograms are forgotten", classes)
            del tables["labels"]
