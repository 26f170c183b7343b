"""Differential privacy of training: noise, budgets per client, and the accountant against published values."""

from __future__ import annotations

import json
import math
from itertools import islice

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpace import TrainingPrivacy, make_selector
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.core.budget import PrivacyBudget, clipped, square_root_taps
from fedpace.core.sums import Member
from fedpace.data.quadratic import Quadratic
from fedpace.delays.lognormal import LognormalDelays
from fedpace.hosting.replies import Privacy
from fedpace.models.builtin import Linear
from fedpace.moments.factor import gaussian_delta, gaussian_sigma
from fedpace.numerics.accounting import gaussian_epsilon, gaussian_multiplier
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

pytest.importorskip("dp_accounting")

# -- the accountant ------------------------------------------------------------------------------------------------


def test_published_values():
    # Dong, Roth and Su (2022): a 1-GDP mechanism has delta(1) = Phi(-1/2) - e Phi(-3/2) = 0.1269.
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.1269, abs=5e-5)
    assert gaussian_epsilon(1.0, 0.126936737507) == pytest.approx(1.0, abs=1e-6)
    # The classical bound sqrt(2 log(1.25 / delta)) / epsilon = 4.84 is not tight (Balle and Wang 2018).
    assert gaussian_multiplier(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-4)


def test_the_package_reproduces_the_moments_accountant():
    from dp_accounting import dp_event, rdp

    # Abadi et al. (CCS 2016): q = 0.01, sigma = 4, 10,000 steps are (1.26, 1e-5)-private; newer bounds are tighter.
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(4.0)), 10_000)
    assert 0.9 < accountant.get_epsilon(1e-5) < 1.26


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-5), (1.0, 1e-6), (3.0, 1e-5), (10.0, 1e-3)])
def test_the_package_agrees_with_our_calibration(epsilon, delta):
    assert gaussian_multiplier(epsilon, delta) == pytest.approx(gaussian_sigma(1.0, epsilon=epsilon, delta=delta))


def test_composition_agrees_with_the_privacy_loss_distribution():
    from dp_accounting import dp_event, pld

    multipliers = [5.0] * 6 + [9.0, 20.0, 40.0]
    accountant = pld.PLDAccountant()
    for multiplier in multipliers:
        accountant.compose(dp_event.GaussianDpEvent(multiplier))
    cost = sum(multiplier**-2 for multiplier in multipliers)
    assert gaussian_epsilon(cost, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    alone, nine = gaussian_epsilon(5.0**-2, 1e-5), gaussian_epsilon(9 * 5.0**-2, 1e-5)
    assert 9 * alone > 2 * nine


def test_released_moments_compose():
    privacy = Privacy(epsilon=1.0, delta=1e-5, clip=1.0, releases=9)
    assert privacy.total_epsilon(1) == pytest.approx(1.0, rel=1e-6)
    assert 2.9 < privacy.total_epsilon() < 4.0, "about the square root of 9, not 9"
    together = Privacy.in_all(epsilon=3.0, delta=1e-5, clip=1.0, releases=9)
    assert together.total_epsilon() == pytest.approx(3.0, rel=1e-6)
    assert together.epsilon > 3.0 / 9


# -- budgets -------------------------------------------------------------------------------------------------------


def member(client, weight, task=0):
    return Member(task, client, 0, 0.1, weight)


def test_a_client_spends_by_its_weights_and_its_number_of_releases():
    budget = PrivacyBudget(TrainingPrivacy("sums", epsilon=3.0, clip=0.5, releases=10))
    group = [member("often", 0.4), member("light", 0.1)]
    assert budget.deviation(group) == pytest.approx(0.5 * 0.4 * budget.multiplier)
    times = 0
    while budget.affordable("often"):
        budget.charge(group)
        times += 1
    assert times == 10
    assert budget.epsilon("often") == pytest.approx(3.0, rel=1e-6)
    assert budget.affordable("light")
    assert budget.spent["light"] == pytest.approx(budget.spent["often"] / 16)
    assert budget.epsilon("never") == 0


def test_several_answers_of_a_client_in_a_sum_count_together():
    budget = PrivacyBudget(TrainingPrivacy("sums", epsilon=1.0, clip=1.0, releases=4))
    group = [member("twice", 0.25, 0), member("twice", 0.25, 1), member("once", 0.5, 2)]
    assert budget.deviation(group) == pytest.approx(0.5 * budget.multiplier)
    budget.charge(group)
    assert budget.spent["twice"] == budget.spent["once"]


def test_correlated_noise_is_accounted_by_its_rows():
    """A client's cost is that of the rows of C x + z n, by the accountant of privacy loss distributions."""
    from dp_accounting import dp_event, pld

    privacy = TrainingPrivacy("sums", epsilon=6.0, clip=1.0, releases=5, mechanism="ftrl", bands=4)
    budget = PrivacyBudget(privacy)
    taps = square_root_taps(4)
    assert np.allclose(taps, [1, 1 / 2, 3 / 8, 5 / 16])
    parts = {0: 1.0, 1: 0.5, 4: 1.0, 11: 0.25}
    for step in range(12):
        group = [member("full", 1.0), member("some", parts.get(step, 0.0))]
        budget.release(np.zeros(3), group if step in parts else group[:1], lambda size: np.zeros(size))
    rows = np.convolve([parts.get(step, 0.0) for step in range(12)], taps)
    accountant = pld.PLDAccountant()
    for part in rows[rows > 0]:
        accountant.compose(dp_event.GaussianDpEvent(budget.multiplier / part))
    assert budget.epsilon("some") == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert budget.spent["full"] == pytest.approx(np.sum(np.convolve(np.ones(12), taps) ** 2) / budget.multiplier**2)


def test_correlated_noise_takes_itself_back():
    """The sum over steps has less noise than with independent noise of the same budget."""
    steps = 64
    ends = {}
    for mechanism in ("gaussian", "ftrl"):
        options = {"bands": 16} if mechanism == "ftrl" else {}
        budget = PrivacyBudget(TrainingPrivacy("sums", epsilon=3.0, releases=4, mechanism=mechanism, **options))
        rng = np.random.default_rng(0)
        total = np.zeros(4000)
        for step in range(steps):  # each client takes part every 16 steps, as `releases` assumes
            total += budget.release(np.zeros(4000), [member(step % 16, 1.0)], rng.standard_normal)
        assert max(budget.epsilon(client) for client in range(16)) == pytest.approx(3.0, rel=1e-6)
        assert not budget.affordable(0)
        ends[mechanism] = float(np.std(total))
    assert ends["ftrl"] < 0.6 * ends["gaussian"]


def test_saved_budgets_go_on_with_the_same_noise():
    privacy = TrainingPrivacy("sums", epsilon=3.0, releases=20, mechanism="ftrl")
    one, other = PrivacyBudget(privacy), PrivacyBudget(privacy)
    normal = np.random.default_rng(1).standard_normal
    for step in range(5):
        one.release(np.zeros(2), [member(step % 2, 1.0)], normal)
    other.load(json.loads(json.dumps(one.saved()[0])), one.saved()[1])
    for each in (one, other):
        each.found = each.release(np.zeros(2), [member(0, 1.0)], np.ones)
    assert np.allclose(one.found, other.found)
    assert one.spent == other.spent


def test_clipping():
    assert np.linalg.norm(clipped(np.array([3.0, 4.0]), 1.0)) == pytest.approx(1.0)
    assert np.array_equal(clipped(np.array([0.3, 0.4]), 1.0), [0.3, 0.4])
    assert np.array_equal(clipped(np.array([math.inf, 1.0]), 1.0), [0.0, 0.0])


# -- in the simulator ----------------------------------------------------------------------------------------------


def simulation(scheme, **privacy):
    return Simulation(
        Quadratic(clients=20, samples=8, test_samples=5, dimension=40),
        Linear(),
        LognormalDelays(jitter=0.3),
        make_selector(*scheme[:1], **dict(scheme[1:])),
        training=Training(epochs=1, batch=0, lr=0.002, arithmetic="numpy"),
        privacy=TrainingPrivacy("sums", **privacy),
        seed=905,
    )


def test_the_noise_in_a_sum_has_the_stated_size():
    quiet = simulation(("random", ("k", 10)), clip=1e-3, epsilon=1e6, releases=1)
    loud = simulation(("random", ("k", 10)), clip=1e-3, epsilon=2.0, releases=50)
    for _ in zip(islice(quiet.rounds(), 2), islice(loud.rounds(), 2), strict=True):
        pass
    noise = np.asarray(loud.parameters, dtype=np.float64) - quiet.parameters
    expected = loud.groups.budget.multiplier * 1e-3 / 10
    assert np.std(noise) == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize("scheme", [("random", ("k", 10)), ("fedbuff", ("buffer", 8)), ("pace-async",)], ids=str)
def test_nobody_spends_more_than_its_budget_and_the_run_ends(scheme):
    one = simulation(scheme, minimum=8, epsilon=3.0, clip=0.1, releases=4)
    rounds = list(islice(one.rounds(), 1, 400))
    budget = one.groups.budget
    assert len(rounds) < 399
    assert one.exhausted
    spent = [budget.epsilon(client) for client in range(20)]
    assert max(spent) <= 3.0 + 1e-6
    told = [current.facts["privacy"]["epsilon"] for current in rounds]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(max(spent))
    assert rounds[-1].facts["privacy"]["out of budget"] > 12
    assert all(current.train_loss is None for current in rounds), "losses get no noise, so they are not released"


def test_clients_without_budget_get_no_task():
    one = simulation(("random", ("k", 8)), minimum=4, epsilon=3.0, clip=0.1, releases=2)
    out, skipped = set(), 0
    for current in islice(one.rounds(), 1, 8):
        assert not out & set(current.clients)
        skipped += len(out)
        out = {client for client in range(20) if not one.groups.budget.affordable(client)}
    assert skipped > 0


def test_what_would_leak_is_refused():
    with pytest.raises(InputError, match="oort is told the losses of single clients, which get no noise"):
        simulation(("oort", ("k", 8)), epsilon=3.0)
    with pytest.raises(InputError, match="set aggregation = 'sums'"):
        TrainingPrivacy(epsilon=1.0)
    with pytest.raises(InputError, match="needs the squares of updates"):
        simulation(("random", ("k", 8), ("fedexp_exponent", 1.0)), epsilon=3.0)


def test_memory_and_lengthened_steps_are_off_under_noise():
    assert simulation(("pace-async",), epsilon=3.0).server.name == "nesterov"
    assert simulation(("pace-async",), epsilon=3.0).server.power == 0
    assert simulation(("pace-async",)).server.name == "client-memory"


# -- from the command line to the page -----------------------------------------------------------------------------


def test_compare_shows_the_budget(tmp_path):
    out = tmp_path / "runs"
    asked = ["--dp", "epsilon=3,delta=1e-5,clip=0.5,releases=20", "--minimum", "4", "--arithmetic", "numpy"]
    short = ["--selectors", "random(k=10)", "--seeds", "1", "--rounds", "3", "--out", str(out)]
    result = CliRunner().invoke(app, ["compare", *asked, *short], catch_exceptions=False)
    assert result.exit_code == 0
    shown = result.stdout
    assert "sums over at least 4 clients" in " ".join(shown.split())
    record = json.loads(next(out.rglob("run.json")).read_text())
    assert record["experiment"]["privacy"]["epsilon"] == 3.0
    last = json.loads(next(out.rglob("rounds.jsonl")).read_text().splitlines()[-1])
    assert 0 < last["facts"]["privacy"]["epsilon"] < 3
    page = next(out.rglob("*.html")).read_text()
    assert "<section id='privacy'>" in page
    assert "Largest epsilon that a client has spent" in page
