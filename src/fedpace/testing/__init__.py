"""The contract as code, for authors of selectors, policies and delay models: one call in a test of yours.

    from fedpace.testing import check_selector

    def test_contract():
        check_selector(MyScheme(k=5))

Whoever connects fedpace to a framework has `check_host` and its catalogue of bad replies (`fedpace.testing.hostile`).
A policy, which works without rounds, is held to its own rules by `check_policy`.
"""

from fedpace.testing.hostile import check_host
from fedpace.testing.policies import check_policy
from fedpace.testing.selectors import ContractError, ToyFleet, check_delay_model, check_selector

__all__ = ["ContractError", "ToyFleet", "check_delay_model", "check_host", "check_policy", "check_selector"]
