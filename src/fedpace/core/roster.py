"""Who is in the federation, with what weight in the objective, and under which rules clients are met."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    above,
    at_least,
    between,
    float_array,
    listed,
    one_of,
    shares,
    shares_among,
)
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.rng import stream
from fedpace.core.accumulators import Accumulator
from fedpace.core.ledger import Ledger
from fedpace.core.protocols import MomentStore
from fedpace.core.types import ClientId
from fedpace.trust.limits import CLIP, WEIGHT_RATE

Warmup = Literal["full", "lazy"]
ShareRule = Literal["uniform", "samples"]


@dataclass(frozen=True)
class Settings:
    """How a coordinator is set up; a restarted server must be given the same.

    Args:
        seed: names every random stream.
        shares: what a client weighs in the objective: `uniform` (1/n) or its `samples`.
        warmup: how clients of which the policy knows too little are met. `full`: all of them measure before the first
            decision (as the paper does). `lazy`: `warmup_quota` of them measure beside each cohort.
        warmup_quota: see above; those that failed a full warm-up are met this way too.
        warmup_wait: share of the clients that a full warm-up waits for; the others are known from when they answer.
        warmup_trains: what clients train in the first full warm-up moves the model: it is the first round then. False:
            the model stays as it is, as a warm-up must leave it that costs nothing.
        learn_delays: estimate delays from what is observed. False: only what the host gives counts.
        deadline: seconds that the policy's tasks are waited for, whatever it says.
        moments_every: ask a client for its feature moment again after so many steps; 0 = once.
        trust: bound the influence of each client, see docs/trust.md. False: only invalid answers are refused.
        hear_late: who misses a round's end goes on, as where a client cannot be stopped: what it reports is heard when
            it answers, and it is asked nothing else until then.
        clip: clip updates longer than this many times the reference length of the fleet; 0 = never.
        weight_rate: most weight of one client over time, as a multiple of its share of the objective; 0 = any.
    """

    seed: int = 0
    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: int = 5
    warmup_wait: float = 1.0
    learn_delays: bool = True
    deadline: float = math.inf
    moments_every: int = 1
    warmup_trains: bool = False
    trust: bool = True
    hear_late: bool = False
    clip: float = CLIP
    weight_rate: float = WEIGHT_RATE

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        one_of(self.shares, ("uniform", "samples"), "shares")
        one_of(self.warmup, ("full", "lazy"), "warmup")
        at_least(self.warmup_quota, 1, "warmup_quota")
        above(self.warmup_wait, 0, "warmup_wait")
        between(self.warmup_wait, 0, 1, "warmup_wait")
        above(self.deadline, 0, "deadline")
        at_least(self.moments_every, 0, "moments_every")
        at_least(self.clip, 0, "clip")
        if self.clip:
            at_least(self.clip, 1, "clip (0 = clip no update)")
        at_least(self.weight_rate, 0, "weight_rate")
        if self.weight_rate:
            at_least(self.weight_rate, 1, "weight_rate (0 = cap no weight over time)")
        for name in ("learn_delays", "warmup_trains", "trust", "hear_late"):
            if not isinstance(getattr(self, name), bool | np.bool_):  # "no" would be yes
                raise InputError(f"{name} must be True or False, but {getattr(self, name)!r} came")
        stream(self.seed)  # refuses a bad seed now rather than in the first round


class Roster:
    """The clients, and the ledger of what is known of each."""

    def __init__(
        self, settings: Settings, moments: MomentStore | None = None, accumulators: Sequence[Accumulator] = ()
    ) -> None:
        self.settings = settings
        self.ledger = Ledger(
            learn_delays=settings.learn_delays,
            moments=moments,
            accumulators=accumulators,
            trust=settings.trust,
            clip=settings.clip,
            weight_rate=settings.weight_rate,
        )

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Everybody, in order of joining: the rows of the View."""
        return tuple(self.ledger.ids)

    def __len__(self) -> int:
        """Clients in the roster."""
        return len(self.ledger)

    def ledger_name(self, row: int) -> str:
        """Name a row as errors do; the ledger may be replaced by a restored one."""
        return self.ledger.name(row)

    def join(
        self,
        clients: Iterable[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> None:
        """Add clients, at any time, with what is known of them already (one entry or row per client)."""
        if isinstance(clients, str | bytes):
            raise InputError(f"join() takes a list of client ids, but the one id {clients!r} came: put it into a list")
        ids = listed(clients, "the clients that join")
        for what, given in (("samples", samples), ("delays", delays), ("labels", labels)):
            if given is not None and (count := len(listed(given, what))) != len(ids):  # type: ignore[arg-type]
                raise InputError(f"{len(ids)} clients join with {count} {what}: give one for each")
        counts = None if samples is None else float_array(samples, "samples", finite=False)
        seconds = None if delays is None else float_array(delays, "delays", finite=False)
        rows = self.ledger.join(ids)
        try:
            if counts is not None:
                for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                    self.ledger.set_samples(row, count)
            if labels is not None:
                self.ledger.set_labels(rows, labels)
            # Last: an estimate that learnt from a refused client would remember it.
            if seconds is not None:
                self.ledger.set_delays(rows, seconds.tolist())
        except FedpaceError:
            self.ledger.leave(ids)
            raise

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Forget clients, at any time. For one that is only away for a while, see `available` of `due`."""
        self.ledger.leave(clients)

    def reachable(self, available: Iterable[ClientId] | None) -> BoolArray:
        """(n,) clients that can be reached and are not excluded."""
        mask = np.ones(len(self.ledger), dtype=np.bool_)
        if available is not None:
            mask[:] = False
            mask[self.ledger.rows(listed(available, "the clients that are available"))] = True
        return self.ledger.trust.admitted(mask)

    def shares(self) -> FloatArray:
        """(n,) weights of the clients in the objective; they sum to 1. Excluded clients count for nothing."""
        counted = self.ledger.trust.admitted(np.ones(len(self.ledger), dtype=np.bool_))
        own = self._own_shares()
        return own if counted.all() or not own[counted].any() else shares(np.where(counted, own, 0.0), own.size)

    def share_of(self) -> Callable[[ClientId], float | None]:
        """Return what says how much a client weighs in the objective now; None where it has left or is excluded."""
        shares, ledger = self.shares(), self.ledger
        counted = ledger.trust.admitted(np.ones(len(ledger), dtype=np.bool_))

        def share(client: ClientId) -> float | None:
            row = ledger.row(client) if client in ledger else -1
            return float(shares[row]) if row >= 0 and counted[row] else None

        return share

    def _own_shares(self) -> FloatArray:
        """(n,) what clients weigh, excluded or not."""
        count = len(self.ledger)
        if self.settings.shares == "uniform":
            return shares(None, count)
        samples = self.ledger.columns["samples"]
        if np.isnan(samples).any():
            row = int(np.flatnonzero(np.isnan(samples))[0])
            raise InputError(
                f"shares='samples' needs everybody's sample count, but that of {self.ledger.name(row)} is "
                "unknown: give it to join(), or use shares='uniform'"
            )
        samples = self.ledger.trust.plausible_samples(samples)
        return shares(samples if samples.any() else None, count, name=self.ledger.name)  # nobody has any: all alike

    def among(self, rows: IntArray) -> FloatArray:
        """Shares of `rows` among themselves; even where none of them counts in the objective."""
        return shares_among(self.shares(), rows)
