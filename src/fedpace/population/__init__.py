"""Fleets without a roster: admission of anonymous devices that check in, and a simulator of up to 10^8 of them.

See docs/scale.md. `Admission` answers check-ins; `simulate` plays days of a fleet given as counts per group, and trains
a real model on the devices that were admitted.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpace.population.admission import Accept, Admission, AdmissionPolicy, CheckIn, Limits, Reject, averaged
    from fedpace.population.book import GroupBook
    from fedpace.population.edges import Edges
    from fedpace.population.fleet import Fleet, Group
    from fedpace.population.learning import Learning
    from fedpace.population.scenarios import scenario
    from fedpace.population.simulator import Result, simulate
    from fedpace.population.steering import Steering

_HOMES = {
    **dict.fromkeys(("Accept", "Admission", "AdmissionPolicy", "CheckIn", "Limits", "Reject", "averaged"), "admission"),
    **dict.fromkeys(("Fleet", "Group"), "fleet"),
    **dict.fromkeys(("Result", "simulate"), "simulator"),
    "Edges": "edges",
    "GroupBook": "book",
    "Learning": "learning",
    "Steering": "steering",
    "scenario": "scenarios",
}

__all__ = [
    "Accept",
    "Admission",
    "AdmissionPolicy",
    "CheckIn",
    "Edges",
    "Fleet",
    "Group",
    "GroupBook",
    "Learning",
    "Limits",
    "Reject",
    "Result",
    "Steering",
    "averaged",
    "make_admission",
    "scenario",
    "simulate",
]


def make_admission(name: str = "paced", **options: Any) -> Any:
    """Return the admission policy registered as `name`, such as `make_admission("first-come", buffer=100)`."""
    from fedpace._base import registry

    return registry.admission.make(name, **options)


def __getattr__(name: str) -> Any:
    """Import an exported name at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedpace.population' has no attribute {name!r}")
    return getattr(import_module(f"fedpace.population.{_HOMES[name]}"), name)
