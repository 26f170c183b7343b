"""The settings of a coordinator, and the roster: which clients take part and how much each weighs in the objective."""

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
    """The options of a coordinator; a restarted server must use the same options.

    Args:
        seed: seed of all random streams.
        shares: weight of a client in the objective: `uniform` (1/n), or proportional to its `samples`.
        warmup: how the server measures clients if the policy knows too few facts about them. `full`: all of them
            measure before the first decision, as in the paper. `lazy`: `warmup_quota` of them measure beside each
            cohort.
        warmup_quota: see `warmup`. Clients that failed in a full warm-up are also measured in this lazy way.
        warmup_wait: fraction of the clients that a full warm-up waits for. The policy can choose the other clients
            once they have answered.
        warmup_trains: True = the first full warm-up is also the first round: the model steps with what clients
            trained. False = a warm-up does not change the model.
        learn_delays: estimate delays from observed times. False = use only the delays that the host gives.
        deadline: longest wait for the policy's tasks, in seconds; the policy may set a shorter one.
        moments_every: ask a client for its feature moment again after this many steps; 0 = only once.
        trust: bound the influence of each client, see docs/trust.md. False = refuse only invalid answers.
        hear_late: stragglers that miss the end of a round continue, for hosts that cannot stop a client. The server
            uses their facts when they answer, and gives them no other task until then.
        clip: clip updates longer than this multiple of the fleet's reference length; 0 = never.
        weight_rate: cap on a client's weight over time, as a multiple of its share of the objective; 0 = no cap.
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
        """Raise InputError for invalid options."""
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
            if not isinstance(getattr(self, name), bool | np.bool_):  # the text "no" is true in Python
                raise InputError(f"{name} must be True or False, but {getattr(self, name)!r} came")
        stream(self.seed)  # raises for a bad seed now rather than in the first round


class Roster:
    """The clients, and the ledger with the facts about each of them."""

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
        """All client ids in order of joining; the index of a client is its row in the View."""
        return tuple(self.ledger.ids)

    def __len__(self) -> int:
        """Number of clients in the roster."""
        return len(self.ledger)

    def ledger_name(self, row: int) -> str:
        """Return the name of a row's client for error messages, from the current ledger."""
        return self.ledger.name(row)

    def join(
        self,
        clients: Iterable[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> None:
        """Add clients, at any time. Pass known facts with one entry or row per client.

        Args:
            clients: ids of the new clients.
            samples: number of samples of each client.
            delays: expected seconds per round of each client.
            labels: (k, c) label histograms.
        """
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
            # Last: the delay estimator cannot unlearn a client that is then refused.
            if seconds is not None:
                self.ledger.set_delays(rows, seconds.tolist())
        except FedpaceError:
            self.ledger.leave(ids)
            raise

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Remove clients and their facts, at any time. For a short absence, use `available` of `due` instead."""
        self.ledger.leave(clients)

    def reachable(self, available: Iterable[ClientId] | None) -> BoolArray:
        """(n,) True for clients in `available` (None = all clients) that are not excluded."""
        mask = np.ones(len(self.ledger), dtype=np.bool_)
        if available is not None:
            mask[:] = False
            mask[self.ledger.rows(listed(available, "the clients that are available"))] = True
        return self.ledger.trust.admitted(mask)

    def shares(self) -> FloatArray:
        """(n,) weights of the clients in the objective; they sum to 1, and excluded clients have weight 0."""
        counted = self.ledger.trust.admitted(np.ones(len(self.ledger), dtype=np.bool_))
        own = self._own_shares()
        return own if counted.all() or not own[counted].any() else shares(np.where(counted, own, 0.0), own.size)

    def share_of(self) -> Callable[[ClientId], float | None]:
        """Return a function: client -> its current weight in the objective; None if it has left or is excluded."""
        shares, ledger = self.shares(), self.ledger
        counted = ledger.trust.admitted(np.ones(len(ledger), dtype=np.bool_))

        def share(client: ClientId) -> float | None:
            row = ledger.row(client) if client in ledger else -1
            return float(shares[row]) if row >= 0 and counted[row] else None

        return share

    def _own_shares(self) -> FloatArray:
        """(n,) weights of the clients in the objective, before exclusion."""
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
        return shares(samples if samples.any() else None, count, name=self.ledger.name)  # no samples: equal shares

    def among(self, rows: IntArray) -> FloatArray:
        """Return the shares of `rows`, scaled to sum 1; equal shares if all of them are 0."""
        return shares_among(self.shares(), rows)
