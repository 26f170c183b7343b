"""A scheme that is never told what it works with goes on as best it can, and nobody would notice: it is said, once."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from fedpace._base.errors import FedpaceWarning
from fedpace.core.messages import Need

if TYPE_CHECKING:
    from fedpace.core.standing import Standing

PATIENCE = 3
"""Rounds after which a fact that nobody has reported is taken to be forgotten."""

REMEDY = {
    Need.DELAY: "report seconds with each Outcome, or give delays when clients join",
    Need.LOSS: "report loss with each Outcome, or answer probes",
    Need.LABELS: "give labels, a histogram per client, when clients join",
    Need.UPDATE: "report update with each Outcome: a sketch of trained minus sent, of the same length for all",
    Need.MOMENT: "report moment with each Outcome: fedpace.moments.factor_from_features(features)",
}
"""What a host does about each; whether moments hold the targets cannot be seen in them."""


def warn_of_silence(standing: Standing) -> None:
    """Warn of everything that the scheme needs, or works better with, and that no client has reported."""
    policy = standing.policy
    for need, remedy in REMEDY.items():
        if need in standing.wanted and not standing.ledger.known(frozenset({need})).any():
            effect = "it needs them to choose" if need in policy.needs else "it works worse without them"
            warnings.warn(
                f"{policy.name} was told no {need.value} in {PATIENCE} rounds, and {effect}: {remedy}",
                FedpaceWarning,
                stacklevel=2,
            )
