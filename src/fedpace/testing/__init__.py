"""Contract checks for authors of selectors, policies, delay models, data sets and models: one call in a test.

    from fedpace.testing import check_selector

    def test_contract():
        check_selector(MyScheme(k=5))

Use `check_policy` for policies, which work without rounds. To connect fedpace to another framework, use `check_host`
and its catalogue of bad replies (`fedpace.testing.hostile`). Only `check_model` needs torch, and loads it at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpace._base.errors import MissingExtraError
from fedpace.testing.hostile import check_host
from fedpace.testing.policy_checks import check_policy
from fedpace.testing.selector_checks import (
    ContractError,
    SumSupport,
    ToyFleet,
    check_dataset,
    check_delay_model,
    check_selector,
    sum_support,
)

if TYPE_CHECKING:
    from fedpace.testing.model_checks import check_model

__all__ = [
    "ContractError",
    "SumSupport",
    "ToyFleet",
    "check_dataset",
    "check_delay_model",
    "check_host",
    "check_model",
    "check_policy",
    "check_selector",
    "sum_support",
]


def __getattr__(name: str) -> Any:
    """Import `check_model`, which needs torch, at first use."""
    if name != "check_model":
        raise AttributeError(f"module 'fedpace.testing' has no attribute {name!r}")
    try:
        from fedpace.testing.model_checks import check_model
    except ModuleNotFoundError as cause:
        raise MissingExtraError("checking models", "sim", cause.name or "torch") from cause
    return check_model
