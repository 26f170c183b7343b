"""Small runs over every registered scheme, and over everything that decides how a round goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from fedpace import make_selector
from fedpace._base import registry
from fedpace._base.errors import InfeasibleError
from fedpace.core.types import Need
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.records.run import Round
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training
from fedpace.trust.robust import make_robust

ROUNDS = 5
LONG = 62
"""Rounds of `long`: three windows of Oort's pacer, and three periods of FLANP."""
CLIENTS = 14
K = 4

RIDGE = {"delayhet-submodular": 10.0, "delayhet-sampling": 10.0, "delayhet-transport": 10.0}
"""So that few clients are feasible."""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "random": [{"variant": "md"}, {"variant": "uniform-unbiased"}],
    "power-of-choice": [{"variant": "cpow-d"}, {"variant": "adapow-d", "switch": 2}],
    "delayhet-submodular": [{"target_heterogeneity": 0.7, "solver": "min-norm"}],
    "divfl": [{"mode": "exact"}],
}
"""Beside the defaults, what takes another path through the server."""

DIGITS = {
    "data": Digits(clients=CLIENTS, alpha=0.5),
    "model": Softmax(),
    "delays": LognormalDelays(),
    "training": Training(lr=0.3, epochs=1),
}
REGRESSION = {
    "data": Quadratic(clients=CLIENTS, samples=20, test_samples=10, dimension=8),
    "model": Linear(),
    "delays": LognormalDelays(),
    "training": Training(lr=0.01, epochs=2, batch=0),
}
"""The same rounds for a tenth of the time; schemes that need labels cannot have them."""

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": DIGITS | {"fleet": Fleet(delays="observed", shares="samples", warmup_wait=1.0), "clock": Clock()},
    "mlp": DIGITS | {"model": Mlp(hidden=3)},
    "plain": {"delays": SyntheticDelays()},
    "observed": {"fleet": Fleet(delays="observed", warmup_wait=1.0), "clock": Clock(probe_fraction=0.1)},
    "waits-for-half": {"fleet": Fleet(warmup_wait=0.5), "clock": Clock()},
    "deadline": {"fleet": Fleet(delays="observed"), "clock": Clock(False, deadline=12.0)},
    "long-deadline": {"fleet": Fleet(delays="observed"), "clock": Clock(False, deadline=90.0)},
    "absent": {"availability": Availability(on=3.0, off=2.0, crash=0.2, late=0.3, join_by=4)},
    "lazy": {"fleet": Fleet(warmup="lazy", warmup_quota=3)},
    "scaffold": {"training": Training(lr=0.01, epochs=1, algorithm="scaffold")},
}
TRUST: dict[str, dict[str, Any]] = {
    "trust": {"fleet": Fleet(trust=True)},
    "trust-observed": {"fleet": Fleet(delays="observed", trust=True, warmup_wait=1.0), "clock": Clock()},
}
"""Where clients are bounded, for `TRUSTED` schemes."""
TRUSTED = ("pace", "pace-async", "random", "fedbuff")
LIARS: dict[str, dict[str, Any]] = {
    "liars": {"fleet": Fleet(trust=True)},
    "liars-digits": DIGITS | {"fleet": Fleet(delays="observed", trust=True)},
    "liars-trimmed": {"fleet": Fleet(trust=True), "robust": make_robust("trimmed-mean")},
    "liars-validated": DIGITS | {"fleet": Fleet(trust=True), "robust": make_robust("fltrust"), "validation": 50},
}
"""Three of the clients attack, for `TRUSTED` schemes."""
FACTORS = {0: -10.0, 1: -1.0, 2: 30.0}
"""Attacker -> what it multiplies its update by."""
PERIODIC: dict[str, dict[str, Any]] = {
    "long": {"fleet": Fleet(delays="observed")},
    "steady": {"fleet": Fleet(delays="observed"), "training": Training(lr=0.0001, epochs=2, batch=0)},
}
"""For schemes that change every 20 rounds. In `steady` losses hardly change, so that Oort's pacer moves."""
NUMPY = {"numpy": {"training": Training(lr=0.01, epochs=2, batch=0, arithmetic="numpy")}}
"""Trained without torch, for one scheme."""
KNOWN = {**SETTINGS, **TRUST, **NUMPY, **LIARS, **PERIODIC}
FEW = ("plain", "observed")
"""Settings in which variants run."""
MANY_ANSWERS = frozenset({"malenia", "ringleader", "ace"})
"""Schemes whose first step waits for every client: thousands of answers where delays have a long tail."""
SHORT_TAIL = ("plain", "absent")
"""Settings in which these schemes run."""


@dataclass(frozen=True)
class Case:
    """One run."""

    scheme: str
    setting: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the golden file calls it."""
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.setting}:{options}" if options else self.setting

    def simulation(self) -> Simulation:
        """Build the run."""
        cls = registry.selectors[self.scheme]
        base = {"clock": Clock(charge_warmup=False), **(DIGITS if Need.LABELS in cls.needs else REGRESSION)}
        settings = base | KNOWN[self.setting]
        fields = cls.__dataclass_fields__
        wanted = {"k": K, "ridge": RIDGE.get(self.scheme)}
        given = {key: value for key, value in wanted.items() if key in fields and value is not None}
        selector = make_selector(self.scheme, **{**given, **self.options})
        simulation = Simulation(
            settings.pop("data"), settings.pop("model"), settings.pop("delays"), selector, seed=3, **settings
        )
        if self.setting in LIARS:
            attacked(simulation)
        return simulation

    def rounds(self) -> list[Round]:
        """Play it, as far as the scheme finds a cohort: some need more clients than are there at times."""
        played: list[Round] = []
        with suppress(InfeasibleError):
            rounds = LONG if self.setting in PERIODIC else ROUNDS
            played.extend(islice(self.simulation().rounds(), rounds + 1))
        return played


def attacked(simulation: Simulation) -> None:
    """Let the clients in `FACTORS` send their update times a factor."""
    engine = simulation.engine
    train, train_from = engine.train, engine.train_from

    def sent(received: list[Any], clients: Sequence[int], results: Iterator[Any]) -> Iterator[Any]:
        for model, client, result in zip(received, clients, results, strict=True):
            update = FACTORS.get(client, 1.0) * (result.parameters - model)
            yield replace(result, parameters=model + update) if client in FACTORS else result

    def together(parameters: Any, clients: Sequence[int], *rest: Any) -> Iterator[Any]:
        return sent([parameters] * len(clients), clients, train(parameters, clients, *rest))

    def apart(received: list[Any], clients: Sequence[int], *rest: Any) -> Iterator[Any]:
        return sent(received, clients, train_from(received, clients, *rest))

    engine.train, engine.train_from = together, apart


def schemes() -> list[str]:
    """Every registered scheme that is part of the package."""
    return registry.selectors.names()


def cases(scheme: str) -> Iterator[Case]:
    """Yield the runs of a scheme."""
    for setting in SHORT_TAIL if scheme in MANY_ANSWERS else SETTINGS:
        if setting not in registry.selectors[scheme].not_with:  # such as pace with scaffold
            yield Case(scheme, setting)
    for options in VARIANTS.get(scheme, []):
        for setting in FEW:
            yield Case(scheme, setting, options)
    if scheme in TRUSTED:
        for setting in TRUST:
            yield Case(scheme, setting)
        for setting in LIARS:
            yield Case(scheme, setting)
    if scheme in ("oort", "flanp"):
        yield Case(scheme, "long")
    if scheme == "oort":
        yield Case(scheme, "steady")
    if scheme == "random":
        for setting in NUMPY:
            yield Case(scheme, setting)
