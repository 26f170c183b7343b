"""Which server rule a scheme uses where the server sees sums only."""

from __future__ import annotations

from typing import Any

from fedpace._base.errors import InputError
from fedpace.core.server_rule import ServerRule
from fedpace.core.sums import check_sum_rule
from fedpace.server._client_memory import ClientMemory
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov


def sum_rule(rule: ServerRule[Any], *, noisy: bool = False) -> ServerRule[Any]:
    """Return the server rule to use with sums in place of `rule`; raise InputError if there is none.

    `memory-corrected` becomes `client-memory`: the same steps, with each client's memory on the client. In rounds
    (`everyone`) it becomes `nesterov`, because cohorts mix remembered and new clients.

    Args:
        rule: the rule that the scheme uses with single updates.
        noisy: whether noise is added to the sums (differential privacy). Noise would add up in the memory and disturb
            FedExP's measurement, so neither is used then.
    """
    if isinstance(rule, MemoryCorrected):
        rule = Nesterov(rule.power) if rule.everyone or noisy else ClientMemory(rule.power, rule.reach)
    if noisy and isinstance(rule, Nesterov):
        rule = Nesterov(0.0)
    check_sum_rule(rule)
    if noisy and "squares" in rule.takes and not isinstance(rule, Nesterov):
        raise InputError(
            f"the server step {rule.name!r} needs the squares of updates, which are not released under differential "
            "privacy: use nesterov, fedavgm, fedadam or average"
        )
    return rule
