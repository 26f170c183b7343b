"""A warning for hosts that never report a fact that the scheme needs or uses; otherwise this would go unnoticed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from fedpace._base.errors import FedpaceWarning
from fedpace.core.messages import Need

if TYPE_CHECKING:
    from fedpace.core.standing import Standing

PATIENCE = 3
"""Number of rounds before the warning."""

REMEDY = {
    Need.DELAY: "report seconds with each Outcome, or give delays when clients join",
    Need.LOSS: "report loss with each Outcome, or answer probes",
    Need.LABELS: "give labels, a histogram per client, when clients join",
    Need.UPDATE: "report update with each Outcome: a sketch of trained minus sent, of the same length for all",
    Need.MOMENT: "report moment with each Outcome: fedpace.moments.factor_from_features(features)",
}
"""Fact -> advice for the host. TARGETS is missing, because a moment does not show whether it includes targets."""


def warn_of_silence(standing: Standing) -> None:
    """Warn of each fact that the scheme needs or uses and that no client has reported."""
    policy = standing.policy
    for need, remedy in REMEDY.items():
        if need in standing.wanted and not standing.ledger.known(frozenset({need})).any():
            effect = "it needs them to choose" if need in policy.needs else "it works worse without them"
            warnings.warn(
                f"{policy.name} was told no {need.value} in {PATIENCE} rounds, and {effect}: {remedy}",
                FedpaceWarning,
                stacklevel=2,
            )
