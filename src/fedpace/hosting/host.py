"""A Session with what every server around it does: who joins with what, how a round settled, state on disk.

A host is given names, notes and arrays; how they travel is the business of `fedpace.flower` and `fedpace.nvflare`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.core.errors import InputError
from fedpace.core.providers import selector_class, server_class
from fedpace.core.session import Session, ShareRule, Warmup
from fedpace.core.stepping import ServerStep
from fedpace.core.types import Need, Outcome, ProbeRequest, Selection, Selector, facts_wanted, wants_first_moments
from fedpace.hosting import state as disk
from fedpace.hosting.memory import Answer, Memory
from fedpace.hosting.notes import Note
from fedpace.hosting.shared_model import SharedModel
from fedpace.hosting.sketch import Arrays
from fedpace.server import server_step


@dataclass(frozen=True)
class Settings:
    """How a session is set up; a restarted server must be given the same."""

    seed: int = 0
    shares: ShareRule = "uniform"
    warmup: Warmup = "lazy"
    warmup_quota: int = 5
    warmup_wait: float = 1.0


class Host:
    """A session, a memory of moments, and the folder that both are kept in.

    Args:
        scheme: the selector.
        settings: of the session.
        memory: what it has in mind of moments and sketches.
        folder: where every round is saved, and from which a restarted server goes on; None = nowhere.
        log: where warnings go.
        offers: what the clients can report.
        server: the server step; None = the one that the scheme asks for.
    """

    def __init__(
        self,
        scheme: Selector[Any],
        settings: Settings,
        memory: Memory,
        folder: Path | None,
        log: logging.Logger,
        offers: frozenset[Need] = frozenset(Need),
        server: ServerStep[Any] | None = None,
    ) -> None:
        self.memory = memory
        self.rule = server_step(scheme, server)
        self.model: SharedModel | None = None
        """The shared model, from when `share` was first called."""
        self.folder = folder
        self.done = 0
        """Rounds that were saved before this server started."""
        self.saved: disk.Saved | None = None if folder is None else disk.load(folder, scheme)
        self._log = log
        self.session = Session(
            scheme,
            seed=settings.seed,
            shares=settings.shares,
            warmup=settings.warmup,
            warmup_quota=settings.warmup_quota,
            warmup_wait=settings.warmup_wait,
            offers=offers,
        )
        if self.saved is not None:
            self._take_over(self.saved, settings)

    def share(self, arrays: Arrays) -> SharedModel:
        """Return the shared model, which holds `arrays` now; its server step goes on where it was."""
        if self.model is None:
            self.model = SharedModel(arrays, self.rule)
            if self.saved is not None:
                self.model.load_state(self.saved.facts.get("server", {}), self.saved.own)
        self.model.arrays = {key: np.array(array) for key, array in arrays.items()}
        return self.model

    @property
    def wanted(self) -> frozenset[Need]:
        """What clients should report."""
        return facts_wanted(self.session.selector)

    @property
    def asks_samples(self) -> bool:
        """Whether a client's number of samples must be known before it trains."""
        return self.session.settings.shares == "samples"

    def moment_due(self, name: str) -> bool:
        """Whether to ask a client for its moment in this round."""
        if wants_first_moments(self.session.selector):
            return name not in self.memory.moment_steps
        return self.memory.moment_due(name, self.session.step)

    def join(self, newcomers: Mapping[str, Note]) -> None:
        """Let clients join with what they said of themselves; who lacks something that cannot wait is left out."""
        known = set(self.session.clients)
        # Ordered by name, short ones first: rows must not depend on who connected first.
        for name in sorted(set(newcomers) - known, key=lambda name: (len(name), name)):
            note = newcomers[name]
            if self.asks_samples and math.isnan(note.samples):
                self._log.warning(
                    "fedpace: %r did not say how many samples it holds, which shares='samples' needs: it is not used",
                    name,
                )
                continue
            if Need.LABELS in self.session.selector.needs and note.labels is None:
                self._log.warning("fedpace: %s needs label histograms, %r sent none", self.session.selector.name, name)
            try:
                self.session.join(
                    [name],
                    samples=None if math.isnan(note.samples) else [note.samples],
                    labels=None if note.labels is None or Need.LABELS not in self.wanted else [note.labels],
                )
            except InputError as problem:
                self._log.warning("fedpace: %r is not used: %s", name, problem)

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Inside, a scheme that chooses k of fewer than k clients chooses all of them."""
        scheme: Any = self.session.selector
        if getattr(scheme, "k", 0) > len(self.session) > 0:
            self.session.selector = replace(scheme, k=len(self.session))
        try:
            yield
        finally:
            self.session.selector = scheme

    def probe(self, *, now: float, available: Iterable[str]) -> ProbeRequest | None:
        """Ask the scheme whom it wants to hear before it chooses."""
        with self.fitting():
            return self.session.probe(now=now, available=available)

    def select(self, *, now: float, available: Iterable[str]) -> Selection:
        """Choose who trains next."""
        with self.fitting():
            return self.session.select(now=now, available=available)

    def observe(
        self,
        selection: Selection,
        finished: Iterable[Answer],
        late: Mapping[str, float],
        current: Arrays,
        now: float,
        *,
        awaited: Iterable[str] = (),
    ) -> None:
        """Tell the session how everybody settled.

        Args:
            selection: the pending one.
            finished: who answered in time.
            late: name -> how long it was waited for in vain. Who is in neither crashed, which says nothing about speed.
            current: the model that was sent.
            now: the session's time.
            awaited: who was asked in a warm-up that goes on without it, and will be heard.
        """
        waiting = set(awaited)
        outcomes = [self.memory.outcome(answer, self.session, current) for answer in finished]
        settled = {outcome.client for outcome in outcomes}
        outcomes += [
            Outcome(client, finished=False, awaited=True)
            if client in waiting
            else Outcome(client, seconds=late.get(str(client), math.nan), finished=False)
            for client in selection.clients
            if client not in settled
        ]
        with self.fitting():
            self.session.observe(outcomes, now=now)

    def hear(self, answers: Iterable[Answer], broken: Iterable[str], sent: Arrays, now: float) -> None:
        """Tell the session what clients say that were awaited, and who of them failed.

        Args:
            answers: usable ones.
            broken: who failed.
            sent: the model that they were sent.
            now: the session's time.
        """
        outcomes = [self.memory.outcome(answer, self.session, sent) for answer in answers]
        outcomes += [Outcome(name, finished=False) for name in broken]
        self.session.hear(outcomes, now=now)

    def save(
        self,
        number: int,
        selection: Selection,
        *,
        finished: Iterable[str],
        awaited: Iterable[str] = (),
        available: Iterable[str],
        seconds: float,
        model: Mapping[str, NDArray[Any]] | None,
        own: Mapping[str, NDArray[np.generic]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state after round `number`, and a line of the diary."""
        if self.folder is None:
            return
        memory: dict[str, Any] = {
            "moment_steps": self.memory.moment_steps,
            "moment_width": self.memory.moment_width,
        }
        stepping: dict[str, NDArray[Any]] = {}
        if self.model is not None:
            memory["server"], stepping = self.model.saved_state()
        arrays = None if model is None else dict(model)
        kept = {**(own or {}), **stepping}
        disk.save(self.folder, disk.Saved(number, self.session, arrays, memory | dict(facts or {}), kept))
        names, settled, waiting = [str(name) for name in selection.clients], set(finished), set(awaited)
        disk.append_round(
            self.folder,
            {
                "round": number,
                "step": selection.step,
                "warmup": selection.warmup,
                "clients": names,
                "weights": selection.weights.tolist(),
                "failed": [name for name in names if name not in settled | waiting],
                "awaited": [name for name in names if name in waiting],
                "available": sorted(available),
                "seconds": seconds,
                "clock": self.session.now,
                "status": selection.why.status,
            },
        )

    def _take_over(self, saved: disk.Saved, settings: Settings) -> None:
        """Go on from what was saved; what was asked for must be what is there."""
        session = saved.session
        found = session.settings
        for name, wanted in vars(settings).items():
            if (there := getattr(found, name)) != wanted:
                raise InputError(
                    f"the state in {self.folder} was made with {name} = {there!r}, but {wanted!r} is asked for: give "
                    "the same, or use another folder"
                )
        session.abandon()
        self.session, self.done = session, saved.round
        try:
            steps = {str(name): int(step) for name, step in saved.facts["moment_steps"].items()}
            self.memory.moment_steps, self.memory.moment_width = steps, saved.facts["moment_width"]
        except (KeyError, TypeError, AttributeError, ValueError) as cause:
            raise InputError(f"the state in {self.folder} is damaged: {cause!r}") from cause


def make_server(server: str | ServerStep[Any] | None) -> ServerStep[Any] | None:
    """Return the server step that was named or given; None = what the scheme asks for."""
    if isinstance(server, str):
        rule: ServerStep[Any] = server_class(server)()
        return rule
    return server


def make_selector(selector: str | Selector[Any], options: Mapping[str, Any]) -> Selector[Any]:
    """Return the scheme that was named or given."""
    if isinstance(selector, str):
        scheme: Selector[Any] = selector_class(selector)(**options)
        return scheme
    if options:
        raise InputError(f"{sorted(options)} came beside a ready selector: give options with a scheme's name only")
    return selector
