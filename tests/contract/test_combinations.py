"""Scheme x server step x local algorithm: a run reaches what random reaches, or is refused before it begins.

The slow part plays all combinations; the others are those that broke once, and one of each kind.
"""

from __future__ import annotations

from functools import cache
from itertools import islice

import pytest

from fedpace import make_selector, registry
from fedpace._base.errors import InputError
from fedpace.config import build
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training

ALGORITHMS = {"fedavg": {}, "fedprox": {"mu": 0.1}, "scaffold": {}}
OPTIONS = {"k": 5, "m": 10, "buffer": 5, "d": 10}
"""Options that suit 20 clients, for the schemes that have them."""
LOWER = 0.03
"""How far below the best of random the target is; the same for all combinations."""
SLOWER = 10.0
"""Times as long as random takes, after which a combination has failed."""
STEPS = 600
RATES = {"fadas": 0.1, "fedadam": 0.1, "fedyogi": 0.1}
"""Step sizes of adaptive rules on this task."""


def simulation(scheme, server=None, algorithm="fedavg"):
    """Return a run before its first round."""
    cls = registry.selectors[scheme]
    options = {key: value for key, value in OPTIONS.items() if key in cls.__dataclass_fields__ and scheme != "ace"}
    rule = None
    if server is not None:
        rule = build(registry.servers[server], {"lr": RATES[server]} if server in RATES else {}, server)
    return Simulation(
        Digits(clients=20, alpha=0.5),
        Softmax(),
        LognormalDelays(jitter=0.3),
        make_selector(scheme, **options),
        training=Training(epochs=2, batch=16, lr=0.3, algorithm=algorithm, **ALGORITHMS[algorithm]),
        fleet=Fleet(warmup_wait=0.25),
        clock=Clock(charge_warmup=True),
        server=rule,
        seed=5,
    )


def seconds_to(target, one, limit, steps=STEPS):
    """Return when the mean of five evaluations reached the target; None = it did not within limit or steps."""
    last = []
    for current in islice(one.rounds(), steps):
        last = [*last, current.metric][-5:]
        if sum(last) / 5 >= target:
            return current.clock
        if current.clock > limit:
            return None
    return None


@cache
def of_random(algorithm):
    """Return the target, and how long random takes to it with this algorithm."""
    target = max(current.metric for current in islice(simulation("random").rounds(), 40)) - LOWER
    found = seconds_to(target, simulation("random", algorithm=algorithm), float("inf"))
    assert found is not None
    return target, found


def check(scheme, server, algorithm):
    """Raise unless the combination is refused, or reaches what random reaches."""
    target, seconds = of_random(algorithm)
    said = ""
    try:
        one = simulation(scheme, server, algorithm)
    except InputError as refused:
        said = str(refused)
    if said:
        assert "use " in said.lower(), "a refusal says what to use instead"
        return
    assert seconds_to(target, one, SLOWER * seconds) is not None, f"{scheme} with {server} and {algorithm}"


BROKE_ONCE = [
    ("pace", None, "scaffold"),
    ("pace-async", "fedadam", "fedavg"),
    ("pace-async", None, "fedprox"),
    ("pace-async", None, "scaffold"),
    ("pace", "fedadam", "fedavg"),
    ("pace", None, "fedprox"),
    ("fedbuff", "memory-corrected", "scaffold"),
    ("ca2fl", "nesterov", "fedavg"),
    ("momentum-approximation", None, "fedavg"),
    ("moment-match", None, "scaffold"),
]


@pytest.mark.parametrize(("scheme", "server", "algorithm"), BROKE_ONCE)
def test_what_broke_once_works_or_is_refused(scheme, server, algorithm):
    check(scheme, server, algorithm)


@pytest.mark.parametrize(
    ("scheme", "server", "algorithm", "words"),
    [
        ("pace", None, "scaffold", "pace does not work with algorithm = 'scaffold'.*algorithm = 'fedavg'"),
        ("pace-async", "fedadam", "fedavg", "own server step only, but the server step 'fedadam'.*fedbuff"),
        ("ca2fl", "average", "fedavg", "ca2fl works with its own"),
        ("ringleader", "nesterov", "fedavg", "ringleader works with its own"),
    ],
)
def test_refusals_say_what_to_use_instead(scheme, server, algorithm, words):
    with pytest.raises(InputError, match=words):
        simulation(scheme, server, algorithm)


def test_a_scheme_takes_its_own_server_step_with_other_options():
    assert simulation("ca2fl", "calibrated").server == registry.servers["calibrated"]()


COSTLY = ("delayhet-sampling", "delayhet-transport")
"""Schemes that take seconds to choose a cohort: played with their own server step only."""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("server", [None, *registry.servers.names()])
@pytest.mark.parametrize("scheme", registry.selectors.names())
def test_every_combination_works_or_is_refused(scheme, server, algorithm):
    if scheme in COSTLY and server is not None:
        pytest.skip("takes minutes")
    check(scheme, server, algorithm)
