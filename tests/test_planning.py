"""Planning a cohort: against brute force over all prefixes, against the scheme of the same objective, and on files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from mixtures import best_mixture
from typer.testing import CliRunner

from fedpace import planning
from fedpace._base.errors import InfeasibleError, InputError
from fedpace.cli import app
from fedpace.core.session import Session
from fedpace.core.types import Outcome
from fedpace.numerics.heterogeneity import whitened_gram
from fedpace.planning import plan_cohort
from fedpace.selectors.moment_match import MomentMatch

RNG = np.random.default_rng(0)


def fleet(count=30, width=3, rows=8):
    rng = np.random.default_rng(count)
    delay = rng.lognormal(3, 1, count)
    factors = rng.normal(size=(count, rows, width)) * np.sqrt(rng.uniform(0.2, 4, (count, 1, width))) / math.sqrt(rows)
    return delay, factors


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_delays_alone_against_every_prefix(noise):
    delay, _ = fleet(40)
    found = plan_cohort(delay, noise=noise)
    tau = np.sort(delay)
    costs = [tau[k - 1] / (1 - error) if (error := noise * (1 / k - 1 / 40)) < 1 else math.inf for k in range(1, 41)]
    best = int(np.argmin(costs))
    assert found.chosen.cost == pytest.approx(costs[best])
    assert len(found.clients) == best + 1
    assert sorted(delay)[: best + 1] == pytest.approx(found.seconds)
    assert found.one_more.cost == pytest.approx(costs[best + 1])
    assert found.everyone.cost == pytest.approx(tau[-1])
    assert found.chosen in found.frontier


def test_moments_against_every_prefix():
    delay, factors = fleet()
    found = plan_cohort(delay, factors, ridge=0.1, noise=0.2)
    order = np.argsort(delay)
    gram = whitened_gram(list(factors), ridge=0.1)
    values, vectors = np.linalg.eigh(gram)
    points = vectors * np.sqrt(np.maximum(values, 0))
    mixtures = [best_mixture(points[order[:k]], own=0.2) for k in range(1, 31)]
    costs = [delay[order[k]] / (1 - m.error) if m.error < 1 else math.inf for k, m in enumerate(mixtures)]
    best = int(np.argmin(costs))
    assert found.chosen.cost == pytest.approx(costs[best], rel=1e-6)
    assert found.chosen.prefix == best + 1
    assert found.one_more.cost == pytest.approx(costs[best + 1], rel=1e-6)
    expected = dict(zip(order[mixtures[best].clients].tolist(), mixtures[best].weights.tolist(), strict=True))
    assert dict(zip(found.clients, found.weights, strict=True)) == pytest.approx(expected, abs=1e-4)
    moments = np.einsum("nri,nrj->nij", factors, factors)
    again = plan_cohort(delay, moments, ridge=0.1, noise=0.2)
    assert again.chosen == found.chosen, "factors and their moments are one"


def test_it_is_what_moment_match_would_choose():
    delay, factors = fleet(25)
    session = Session(MomentMatch(), offers=None)
    session.join(range(25), delays=delay)
    selection = session.select()
    session.observe([Outcome(c, seconds=delay[c], moment=factors[c]) for c in selection.clients])
    selection = session.select()
    found = plan_cohort(session.view().delay, factors, ridge=0.1)
    assert sorted(found.clients) == sorted(selection.clients)
    assert found.chosen.cost == pytest.approx(selection.why.objective, rel=1e-6)


def test_many_clients_are_looked_at_portion_by_portion(monkeypatch):
    delay, factors = fleet(300)
    whole = plan_cohort(np.sort(delay) ** 0.1, factors, noise=3.0)
    monkeypatch.setattr(planning, "PORTION", 7)
    parts = plan_cohort(np.sort(delay) ** 0.1, factors, noise=3.0)
    assert parts.chosen.prefix > 7
    assert parts.chosen.cost == pytest.approx(whole.chosen.cost, rel=1e-6)
    assert parts.clients == whole.clients


def test_wide_features_are_sketched():
    delay, factors = fleet(20, width=70, rows=80)
    found = plan_cohort(delay, factors, noise=0.1)
    assert found.chosen.error < 1
    assert found.chosen.clients >= 1


def test_a_plan_says_what_no_method_beats():
    found = plan_cohort([1.0, 4.0, 100.0])
    assert [bound.answers for bound in found.lower_bounds] == [0.0, 3.0, 30.0]
    assert (found.lower_bounds[0].same_data, found.lower_bounds[0].different_data) == (1.0, 100.0)
    assert "No method needs less than 1 s per step" in found.sentences()[-1]
    assert "10 answers per client" in found.sentences()[-1]


def test_limits():
    delay, factors = fleet()
    assert len(plan_cohort(delay, factors, noise=3.0, max_clients=4).clients) <= 4
    assert len(plan_cohort(delay, noise=3.0, max_clients=5).clients) == 5
    everybody = plan_cohort([5.0, 5.0, 5.0])
    assert everybody.one_more is None
    assert everybody.clients == (0, 1, 2)
    with pytest.raises(InfeasibleError, match="resembles the population"):
        plan_cohort([1.0, 2.0], RNG.normal(size=(2, 3, 2)), noise=50.0)


@pytest.mark.parametrize(
    ("delay", "moments", "sentence"),
    [
        ([1.0, -2.0], None, "delay"),
        ([1.0, 2.0], np.zeros((3, 2, 2)), "for 2 clients"),
        ([1.0, 2.0], np.full((2, 2, 2), np.nan), "finite"),
        ([1.0, 2.0], np.zeros((2, 2)), "shape"),
    ],
)
def test_refused(delay, moments, sentence):
    with pytest.raises(InputError, match=sentence):
        plan_cohort(delay, moments)


# -- the command -------------------------------------------------------------------------------------------


def call(*arguments):
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "150"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.fixture
def files(tmp_path):
    delay, factors = fleet()
    lines = ["client,seconds", *(f"phone-{c},{s}" for c, s in enumerate(delay)), f"phone-3,{delay[3]}"]
    (tmp_path / "delays.csv").write_text("\n".join(lines) + "\n")
    shuffled = RNG.permutation(30)
    np.savez(tmp_path / "moments.npz", factors=factors[shuffled], clients=np.array([f"phone-{c}" for c in shuffled]))
    return tmp_path


def test_a_plan_from_files(files):
    delay, factors = fleet()
    expected = plan_cohort(delay, factors)
    found = json.loads(call("--delays", files / "delays.csv", "--moments", files / "moments.npz", "--json"))
    assert found["clients"] == [f"phone-{client}" for client in expected.clients], "matched by name, not by row"
    assert found["weights"] == pytest.approx(list(expected.weights))
    shown = call("--delays", files / "delays.csv", "--png", files / "plan.png", "--html", files / "plan.html")
    assert "One more slow client" in shown
    assert "->" in shown
    assert (files / "plan.png").read_bytes().startswith(b"\x89PNG")
    page = (files / "plan.html").read_text()
    assert "<svg" in page
    assert "http-equiv" not in page
    assert "<script" not in page
    assert "`" not in page


def test_parquet_and_rows_without_names(tmp_path):
    import pyarrow
    from pyarrow import parquet

    delay, factors = fleet()
    parquet.write_table(pyarrow.table({"seconds": delay}), tmp_path / "delays.parquet")
    np.savez(tmp_path / "moments.npz", moments=np.einsum("nri,nrj->nij", factors, factors))
    found = json.loads(call("--delays", tmp_path / "delays.parquet", "--moments", tmp_path / "moments.npz", "--json"))
    assert found["clients"] == [str(client) for client in plan_cohort(delay, factors).clients]


def test_a_plan_from_a_table_of_rounds_and_clients(tmp_path):
    """A row per round, a column per client: planned by the means, and said how long its own rounds would have been."""
    rng = np.random.default_rng(5)
    drawn = np.round(rng.lognormal(3, 0.5, (6, 9)) * np.linspace(1, 1.3, 9), 3)
    lines = [",".join(["round", *(f"phone-{i}" for i in range(9))])]
    lines += [",".join(map(str, [number, *row])) for number, row in enumerate(drawn.tolist())]
    (tmp_path / "rounds.csv").write_text("\n".join(lines) + "\n")
    found = json.loads(call("--delays", tmp_path / "rounds.csv", "--json"))
    mean = plan_cohort(drawn.mean(axis=0))
    rows = list(mean.clients)
    assert found["clients"] == [f"phone-{row}" for row in rows]
    assert found["seconds"] == pytest.approx(mean.seconds)
    assert found["waited"] == pytest.approx(drawn[:, rows].max(axis=1).mean())
    assert found["waited"] > found["chosen"]["seconds"], "somebody is late in every round"
    assert mean.waited is None
    assert "had replied after" in call("--delays", tmp_path / "rounds.csv")
    (tmp_path / "other.csv").write_text("client,latency\na,3\n")
    with pytest.raises(InputError, match="or a column per client, but the columns are client, latency"):
        call("--delays", tmp_path / "other.csv")
    shown = " ".join(call("--delays", tmp_path / "rounds.csv").split())  # a long path breaks its line
    assert "6 rounds of 9 clients, a column each: phone-0, phone-1, phone-2, ..." in shown
    (tmp_path / "gap.csv").write_text("a,b\n1,2\n3,\n")
    with pytest.raises(InputError, match=r"gap.csv, row 3, column 'b': expected a finite number above 0"):
        call("--delays", tmp_path / "gap.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="expected a table with named columns"):
        call("--delays", tmp_path / "empty.csv")


def test_columns_of_other_names(files, tmp_path):
    lines = (files / "delays.csv").read_text().replace("client,seconds", "device,latency")
    (tmp_path / "other.csv").write_text(lines)
    with pytest.raises(InputError, match="say which is which, as in --seconds latency --client device"):
        call("--delays", tmp_path / "other.csv")
    named = ("--seconds", "latency", "--client", "device", "--json")
    assert call("--delays", tmp_path / "other.csv", *named) == call("--delays", files / "delays.csv", "--json")
    with pytest.raises(
        InputError, match=r"--seconds: .* has no column 'latncy'. Did you mean 'latency'\? It has device, "
    ):
        call("--delays", tmp_path / "other.csv", "--seconds", "latncy")
    (tmp_path / "numbers.csv").write_text("id,latency_ms\n1,3\n2,5\n")
    with pytest.raises(InputError, match="--seconds latency_ms --client id"):
        call("--delays", tmp_path / "numbers.csv")  # and not two clients called id and latency_ms


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("delay\n1\n2\n", "the columns are delay: say which is which, as in --seconds delay$"),
        ("battery,device,latency\n9,a,1\n", "as in --seconds latency --client device$"),
        # Two rows of one client must not become two clients.
        ("client_id,seconds\na,1\na,3\n", "if 'client_id' names the clients, say --client client_id$"),
        ("1\n2\n3\n", "first line must name the columns, such as client,seconds, but it is 1$"),
        ("a,1\nb,2\n", "first line must name the columns, such as client,seconds, but it is a,1$"),
        ("1.5,2,3\n2,3,4\n", "first line must name the columns"),
    ],
)
def test_what_would_be_misread_is_refused(tmp_path, text, sentence):
    (tmp_path / "delays.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        call("--delays", tmp_path / "delays.csv")


def test_clients_may_be_called_by_numbers(tmp_path):
    (tmp_path / "rounds.csv").write_text("0,1\n1,20\n3,30\n")
    assert json.loads(call("--delays", tmp_path / "rounds.csv", "--json"))["clients"] == ["0"]


def test_files_that_do_not_fit_are_refused(files):
    np.savez(files / "other.npz", other=np.zeros(3))
    with pytest.raises(InputError, match="it holds other"):
        call("--delays", files / "delays.csv", "--moments", files / "other.npz")
    np.savez(files / "few.npz", factors=np.ones((4, 2, 2)))
    with pytest.raises(InputError, match="of 4 clients, and there are delays of 30"):
        call("--delays", files / "delays.csv", "--moments", files / "few.npz")
    np.savez(files / "some.npz", factors=np.ones((1, 2, 2)), clients=np.array(["phone-1"]))
    with pytest.raises(InputError, match="of 29 clients with delays, such as 'phone-0'"):
        call("--delays", files / "delays.csv", "--moments", files / "some.npz")
    with pytest.raises(InputError, match="no such file"):
        call("--delays", files / "nothing.csv")


def test_moments_that_unpack_to_gigabytes_are_refused(files):
    width = 128
    np.savez_compressed(files / "bomb.npz", moments=np.zeros((4200, width, width)))
    with pytest.raises(InputError, match=r"bomb\.npz is not a readable npz.*unpack to 550,.*save it uncompressed"):
        call("--delays", files / "delays.csv", "--moments", files / "bomb.npz")


def test_names_do_not_reach_the_terminal_as_they_are(tmp_path):
    (tmp_path / "delays.csv").write_text('client,seconds\n"\x1b[2Ja\nb",1.0\nc,2.0\n')
    printed = call("--delays", tmp_path / "delays.csv")
    assert r"\x1b[2Ja\x0ab" in printed
    assert "\x1b" not in printed
    (tmp_path / "rounds.csv").write_text("\x1b[2Ja,b,c\n1.0,2.0,3.0\n")
    assert "\x1b" not in call("--delays", tmp_path / "rounds.csv")
