"""Data and a model of one's own: what is accepted, what comes out, and what is refused with which sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from tests.study.material import CLIENTS, RNG, TEST, Net, compare
from torch import nn

import fedpace
from fedpace._base.errors import FedpaceWarning, InputError
from fedpace.delays.constant import ConstantDelays
from fedpace.models.builtin import Mlp
from fedpace.records.run import find_runs
from fedpace.sim.torch_trainer import TorchTrainer, Training, linear_layers
from fedpace.study import arguments


def test_a_comparison_in_a_few_lines(tmp_path, capsys):
    results = compare(target=0.9)
    assert [scheme.label for scheme in results.comparison.schemes] == ["random(k=3)", "pace"]
    assert len(results.records) == 4
    info = results.records[0].info
    assert info.experiment["model"] == {
        "name": "own",
        "module": "Net",
        "head": "last",
        "outputs": 3,
        "parameters": 83,
        "tokens": False,
    }
    assert info.experiment["data"]["clients"] == 6
    assert info.experiment["clock"]["charge_warmup"] is True, "everything is on the clock"
    shown = str(results)
    assert "random(k=3)" in shown
    assert "Client" in shown, "the table of costs"
    assert results.summary in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 100
    for thing in (results, results.comparison, results["pace"], results.records[0], results.records[0].rounds[-1]):
        assert len(repr(thing)) < 160, "one line of a terminal or two"
    html = results._repr_html_()
    assert "data:image/png;base64," in html
    assert "random(k=3)" in html
    assert html.count("<table>") == 2
    page = results.page()
    assert page.html.startswith("<!doctype html>")
    assert page._repr_html_().startswith("<iframe srcdoc=")
    folder = results.save(tmp_path / "kept")
    assert {"report.html", "report.png", "comparison.json"} <= {path.name for path in folder.iterdir()}
    assert find_runs(folder) == list(results.records)
    with pytest.raises(InputError, match="holds something already"):
        results.save(folder)
    with pytest.raises(InputError, match="no scheme 'oort'"):
        results["oort"]
    assert results["pace"].runs == 2
    assert capsys.readouterr() == ("", "")


def test_runs_go_on_where_they_stopped(tmp_path):
    whole = compare(out=tmp_path / "whole")
    (tmp_path / "part").mkdir()
    compare(out=tmp_path / "part")
    cut = tmp_path / "part" / "pace" / "seed-1"
    info = json.loads((cut / "run.json").read_text())
    (cut / "run.json").write_text(json.dumps(info | {"status": "interrupted"}))
    (cut / "rounds.jsonl").write_text("")
    again = compare(out=tmp_path / "part", resume=True)
    assert [record.rounds for record in again.records] == [record.rounds for record in whole.records]
    with pytest.raises(InputError, match=r"holds runs already: .*\(overwrite=True\)"):
        compare(out=tmp_path / "part")
    with pytest.raises(InputError, match="another comparison, whose data differ"):
        compare(clients=CLIENTS[::-1], out=tmp_path / "part", resume=True)
    with pytest.raises(InputError, match="nothing to resume"):
        compare(out=tmp_path / "nowhere", resume=True)


def test_the_command_reports_what_a_program_ran_and_says_who_can_resume_it(tmp_path):
    from typer.testing import CliRunner

    from fedpace.cli import app

    compare(out=tmp_path / "runs")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--json"])
    assert done.exit_code == 0, done.exception
    assert [scheme["label"] for scheme in json.loads(done.stdout)["schemes"]] == ["random(k=3)", "pace"]
    refused = CliRunner().invoke(app, ["resume", str(tmp_path / "runs")])
    assert isinstance(refused.exception, InputError)
    assert "resume=True" in str(refused.exception)


SCRIPT = """
import numpy as np, torch, fedpace

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = torch.nn.Conv1d(1, 2, 2), torch.nn.Linear(6, 2)
    def forward(self, x):
        return self.out(self.conv(x[:, None]).flatten(1))

rng = np.random.default_rng(0)
clients = [(X := rng.normal(size=(20, 4)), (X[:, 0] > 0).astype(int)) for _ in range(5)]
delays = [1, 2, 3, 4, 5]
results = fedpace.compare(clients, clients[0], Net(), schemes=["random(k=2)"], delays=delays, rounds=2, seeds=1)
print(results)
"""


def test_a_script_needs_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert "random(k=2)" in done.stdout
    assert done.stderr.count("\n") == 1, "one line per run, on standard error"


def test_without_schemes_random_is_of_a_size_that_fits():
    results = fedpace.compare(CLIENTS, TEST, Net, rounds=2, seeds=1, progress=False)
    assert [scheme.label for scheme in results.comparison.schemes] == ["random(k=3)", "pace"]


# -- what is accepted --------------------------------------------------------------------------------------


def test_floats_of_any_width_tensors_and_lists_are_one():
    def played(convert):
        pairs = [(convert(X), convert(y)) for X, y in CLIENTS]
        rounds = fedpace.simulate(
            clients=pairs, test=TEST, model=Mlp(hidden=4), delays=ConstantDelays(), selector="random(k=3)"
        )
        return [(current.metric, current.loss) for current in islice(rounds, 3)]

    assert played(np.asarray) == played(torch.from_numpy) == played(lambda array: array.tolist())


@pytest.mark.parametrize("targets", [np.int8, np.uint16, np.float64])
def test_classes_of_any_type(targets):
    ground = arguments.ground([(X, y.astype(targets)) for X, y in CLIENTS], TEST, None, Net())
    assert ground.data.build(seed=0).train[0].targets.dtype == np.int64
    assert ground.data.build(seed=0).classes == 3
    assert ground.data.build(seed=0).train[0].inputs.dtype == np.float32


def test_names_of_classes_are_numbered_over_all_clients_and_the_test_data():
    """Numbered client by client, a client with two classes of three would call them 0 and 1 whichever they are."""
    names = np.array(["ash", "birch", "cedar"])
    narrow = [(X[y > 0], y[y > 0]) for X, y in CLIENTS]
    ground = arguments.ground([(X, names[y].tolist()) for X, y in narrow], (TEST[0], names[TEST[1]]), None, Net())
    data = ground.data.build(seed=0)
    assert [samples.targets.tolist() for samples in data.train] == [y.tolist() for _, y in narrow]
    assert data.test.targets.tolist() == TEST[1].tolist()
    assert data.classes == 3


def test_schemes_as_one_text():
    labels = [scheme.label for scheme in arguments.schemes("random(k=3, variant=md), pace")]
    assert labels == ["random(k=3, variant=md)", "pace"]


def test_a_softmax_at_the_end_is_warned_of():
    """The loss takes the softmax itself: a second one makes training slow, and nothing else would tell."""
    with pytest.warns(FedpaceWarning, match="leave its softmax out"):
        arguments.ground(CLIENTS, TEST, None, nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)))


def test_regression_by_its_targets():
    pairs = [(X, X[:, 0] * 0.5) for X, _ in CLIENTS]
    results = compare(pairs, pairs[0], nn.Linear(4, 1), schemes=["random(k=3)"], lr=0.1, rounds=10, seeds=1)
    assert results.comparison.metric == "loss"
    assert results.records[0].rounds[-1].loss < 0.2 * results.records[0].rounds[0].loss
    flat = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))  # (n,) rather than (n, 1)
    assert compare(pairs, pairs[0], flat, schemes=["random(k=3)"], seeds=1).comparison.metric == "loss"


def test_whole_numbers_for_an_embedding():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)

        def forward(self, words):
            return self.out(self.words(words).mean(1))

    pairs = [((X := RNG.integers(0, 10, (20, 5))), (X[:, 0] > 4).astype(int)) for _ in range(4)]
    ground = arguments.ground(pairs, pairs[0], None, Bag())
    assert ground.data.build(seed=0).train[0].inputs.dtype == np.int64
    assert compare(pairs, pairs[0], Bag(), schemes=["pace"], seeds=1).records


def test_a_test_set_per_client_and_clients_by_name():
    ground = arguments.ground(dict(zip("abcdef", CLIENTS, strict=True)), CLIENTS, None, Net())
    data = ground.data.build(seed=0)
    assert data.test_sizes == tuple(len(y) for _, y in CLIENTS)
    assert data.names == tuple("abcdef"), "explain and the page call clients by their keys"


def test_a_data_set_of_ours_under_a_module_of_yours():
    results = fedpace.compare(
        data="digits(clients=8)", model=nn.Linear(64, 10), schemes="random(k=4)", rounds=2, seeds=1, progress=False
    )
    assert results.records[0].info.experiment["data"]["name"] == "digits"


def test_delays_as_seconds():
    seconds = np.arange(1.0, 7.0)
    results = compare(schemes=["random(k=6)"], delays=seconds, seeds=1)
    assert [current.seconds for current in results.records[0].rounds[1:]] == [6.0] * 3
    per_round = np.array([[1.0] * 6, [2.0] * 6])
    results = compare(schemes=["random(k=6)"], delays=per_round, seeds=1)
    assert [current.seconds for current in results.records[0].rounds[1:]] == [1.0, 2.0, 1.0]


# -- modules -----------------------------------------------------------------------------------------------


def test_a_module_starts_from_its_own_weights_and_stays_as_it_was():
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    trainers = []
    for seed in (0, 1):
        ground = arguments.ground(CLIENTS, TEST, None, net)
        trainers.append(TorchTrainer(ground.data.build(seed=seed), ground.model, Training(), seed=seed))
    assert torch.equal(trainers[0].initial, trainers[1].initial), "under every seed"
    trained = trainers[0].train(trainers[0].initial, 0, 0).parameters
    named = trainers[0].named_tensors(trained)
    assert named.keys() == before.keys(), "by the names that its author gave"
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in before)


def test_what_makes_a_module_is_called_once_per_seed():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    ground = arguments.ground(CLIENTS, TEST, None, Net)
    one, two, again = (
        TorchTrainer(ground.data.build(seed=seed), ground.model, Training(), seed=seed).initial for seed in (0, 1, 0)
    )
    assert not torch.equal(one, two)
    assert torch.equal(one, again)
    assert torch.equal(torch.get_rng_state(), state)


def test_features_are_what_the_last_linear_layer_is_given():
    ground = arguments.ground(CLIENTS, TEST, None, Net())
    coach = TorchTrainer(ground.data.build(seed=0), ground.model, Training(moment_samples=1000), seed=0)
    net = Net()
    net.load_state_dict(coach.named_tensors(coach.initial))
    net.eval()
    with torch.no_grad():
        hidden = net.norm(torch.relu(net.inner(torch.from_numpy(CLIENTS[1][0]).float()))).double().numpy()
    with_bias = np.column_stack([hidden, np.ones(len(hidden))])
    factor = coach.moment(coach.initial, 1)
    np.testing.assert_allclose(factor.T @ factor, with_bias.T @ with_bias / len(hidden), atol=1e-6)
    named = arguments.ground(CLIENTS, TEST, None, Net(), head="norm")
    assert named.model.head == "norm"


def test_plain_perceptrons_are_trained_all_at_once():
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    results = {}
    for wrapped in (plain, nn.Sequential(nn.Identity(), *plain)):
        ground = arguments.ground(CLIENTS, TEST, None, wrapped)
        coach = TorchTrainer(ground.data.build(seed=0), ground.model, Training(), seed=0)
        results[coach.stackable] = coach.train(coach.initial, 2, 0).parameters
    torch.testing.assert_close(results[True], results[False])
    frozen = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3))
    ground = arguments.ground(CLIENTS, TEST, None, frozen)
    module = ground.model.build((4,), 3, generator=torch.Generator())
    assert linear_layers(module, (4,)) is None
    assert not module.moving_features


def test_other_engines_give_the_same():
    """A module that other processes can import may be trained there."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
    inline, spread = (compare(model=model, schemes=["random(k=3)"], engine=e, seeds=1) for e in ("auto", "processes"))
    assert inline.records[0].rounds == spread.records[0].rounds
    assert spread.records[0].info.engine["name"] == "processes"
