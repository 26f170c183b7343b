"""Adapters of a frozen transformer: only they travel and are remembered. The example itself needs transformers."""

import re
import subprocess
import sys
import tomllib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedpace
from fedpace.sim.rounds import Simulation
from fedpace.study import arguments

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora"


class Adapted(nn.Module):
    """A frozen linear layer plus a product of two small matrices, as Hu et al. (2021) have it."""

    def __init__(self, frozen, rank=2):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Tiny(nn.Module):
    """One layer of attention over characters."""

    def __init__(self, width=12, characters=10):
        super().__init__()
        self.embedding = nn.Embedding(characters, width).requires_grad_(False)
        self.mix = Adapted(nn.Linear(width, 3 * width))
        self.head = nn.Linear(width, characters)

    def forward(self, x):
        q, k, v = self.mix(self.embedding(x.long())).chunk(3, -1)
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v)[:, -1])


def text(client, samples=40, window=5):
    """Each character follows from the one before; clients begin at different places."""
    start = np.random.default_rng(client).integers(0, 10, samples)
    windows = (start[:, None] + 3 * np.arange(window + 1)) % 10
    return windows[:, :-1], windows[:, -1]


def test_only_adapters_travel_and_are_remembered():
    ground = arguments.ground([text(client) for client in range(6)], text(99), None, Tiny, head="head")
    played = Simulation(
        ground.data,
        ground.model,
        arguments.delay_model("lognormal"),
        fedpace.make_selector("pace-async", memory="4bit"),
        training=fedpace.Training(epochs=3, lr=0.1),
        engine=arguments.engine_options("auto", ground.model),
        seed=1,
    )
    rounds = list(islice(played.rounds(), 25))
    adapters = 2 * 12 + 36 * 2 + 12 * 10 + 10
    assert played.trainer.trainable == adapters
    assert played.trainer.message_bytes == 4 * adapters
    assert {row.size for row in played.aggregator.state.offsets.rows} == {fedpace_bytes(adapters)}
    before, after = (played.trainer.named_tensors(each) for each in (played.trainer.initial, played.parameters))
    assert torch.equal(before["mix.frozen.weight"], after["mix.frozen.weight"])
    assert torch.equal(before["embedding.weight"], after["embedding.weight"])
    assert not torch.equal(before["mix.up.weight"], after["mix.up.weight"])
    assert rounds[-1].metric > rounds[0].metric + 0.3


def fedpace_bytes(length):
    return -(-length // 64) * (2 + 32)


@pytest.mark.slow
def test_the_example_runs_without_a_download(tmp_path):
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    command = [sys.executable, "-W", "ignore", str(EXAMPLE / "compare.py"), "--clients", "4", "--windows", "200"]
    done = subprocess.run(
        [*command, "--rounds", "2", "--pretrain", "2"],
        env={"PATH": "", "FEDPACE_DATA": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "made-up text: 4 roles; 10,832 of 121,168 parameters travel" in done.stdout
    assert "over-selection" in done.stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("selector", ["pace-async", "fedbuff"])
def test_the_app_on_flower_sends_only_adapters(selector, monkeypatch, capsys):
    """On a grid in this process. Each role counts up in threes from a place of its own, among ten characters."""
    for name in ("flwr", "peft", "transformers"):
        pytest.importorskip(name)
    from flower_grid import Tools
    from flwr.app import Context, RecordDict

    monkeypatch.syspath_prepend(str(EXAMPLE))
    try:
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
    except ModuleNotFoundError:
        pass
    import compare
    import flower_app

    counting = lambda count, windows, seed: ([text(each, windows, compare.WINDOW) for each in range(count)], "")  # noqa: E731
    monkeypatch.setattr(flower_app, "roles", counting)
    written = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    config = written | {"selector": selector, "num-server-rounds": 8, "pretrain": 0, "target": 1.1}
    grid = Tools.grid()
    for node in range(4):
        grid.add(node + 10, flower_app.client, **{"partition-id": node, "num-partitions": 4})
        grid.nodes[node + 10][1].run_config = config
    flower_app.main(grid, Context(1, 1, {}, RecordDict(), config))
    said = re.findall(r"LORA step \d+ clock (\S+) loss (\S+) accuracy \S+ values (\d+)", capsys.readouterr().out)
    assert {values for *_, values in said} == {"10832"}, "of 121,168 parameters"
    assert len(said) == 9
    clocks = [float(clock) for clock, *_ in said]
    assert clocks == sorted(clocks)
    losses = [float(loss) for _, loss, _ in said]
    assert losses[0] > 4, "chance: log 80 is 4.4"
    assert losses[-1] < 0.5, "it learns which character comes next, not only that there are ten: log 10 is 2.3"
    for name in ("flower_app", "compare", "model"):
        sys.modules.pop(name, None)
