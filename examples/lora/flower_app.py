"""The same fine-tuning on Flower: only adapters and the head are in the messages, and fedpace remembers only them.

    pip install 'fedpace[flower,sim,data,lora]' 'flwr[simulation]'
    flwr run examples/lora                                  a node is a role; Shakespeare, or made-up text

A node builds the frozen body itself, as it would load a pretrained model. Nodes take as long as a log-normal delay
model says, on the clock `reported`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from compare import WINDOW, pretrained, roles
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from model import lora_model
from torch import nn

import fedpace
from fedpace.delays.lognormal import LognormalDelays
from fedpace.flower import PacedServer, report_mod


def number(value: object) -> int:
    """Return a whole number of a configuration, whose values may have any type."""
    return int(str(value))


@lru_cache(maxsize=1)
def ground(nodes: int, windows: int, steps: int, seed: int) -> tuple[nn.Module, list[tuple[np.ndarray, np.ndarray]]]:
    """Return the model with its frozen body, and the text of each node's role."""
    torch.set_num_threads(1)
    everyone, _ = roles(2 * nodes, windows, seed)
    others = everyone[:nodes]
    inputs, targets = (np.concatenate([role[part] for role in others]) for part in (0, 1))
    return pretrained(lora_model(), inputs, targets, steps=steps, seed=seed), everyone[nodes:]


def travelling(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that are sent: those that need a gradient."""
    return {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}


def tensors(texts: tuple[np.ndarray, np.ndarray], part: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows and next characters of a part of a role's text."""
    return torch.from_numpy(texts[0][part].astype(np.int64)), torch.from_numpy(texts[1][part].astype(np.int64))


def modelled_delay(message: Message, context: Context, _: float) -> float:
    """Return the seconds that the delay model gives this node in this step."""
    step = number(message.content.config_records["config"]["server-round"])
    nodes, place = (number(context.node_config[name]) for name in ("num-partitions", "partition-id"))
    drawn = LognormalDelays().build(nodes, model_bytes=43_000, seed=number(context.run_config["seed"])).draw(step)
    return float(drawn[place])


client = ClientApp(mods=[report_mod(delay=modelled_delay)])


@client.train()
def fit(message: Message, context: Context) -> Message:
    """Train the adapters and the head on this node's role."""
    config, node = context.run_config, context.node_config
    given = (number(config[name]) for name in ("windows", "pretrain", "seed"))
    model, texts = ground(number(node["num-partitions"]), *given)
    place, held = number(node["partition-id"]), number(config["windows"]) // 5
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict(), strict=False)
    x, y = tensors(texts[place], slice(None, -held - WINDOW))
    optimiser = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=float(config["lr"]))
    step = number(message.content.config_records["config"]["server-round"])
    generator = torch.Generator().manual_seed(1000 * step + place)
    losses = []
    for _ in range(number(config["local-epochs"])):
        for batch in torch.randperm(len(y), generator=generator).split(32):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    metrics = MetricRecord({"train_loss": float(np.mean(losses)), "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(travelling(model)), "metrics": metrics}), reply_to=message)


server = ServerApp()


class TargetReachedError(Exception):
    """Ends the run."""


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the target or the last step, and print one line per evaluation."""
    config: Any = context.run_config
    nodes = len(list(grid.get_node_ids()))
    model, texts = ground(nodes, number(config["windows"]), number(config["pretrain"]), number(config["seed"]))
    held = number(config["windows"]) // 5
    tests = [tensors(role, slice(-held, None)) for role in texts]
    x, y = (torch.cat([test[part] for test in tests]) for part in (0, 1))
    paced = PacedServer(fedpace.make_selector(str(config["selector"])), seed=number(config["seed"]), clock="reported")

    @torch.no_grad()
    def evaluate(step: int, arrays: ArrayRecord) -> MetricRecord:
        sent = arrays.to_torch_state_dict()
        model.load_state_dict(sent, strict=False)
        outputs = model(x)
        reached = float((outputs.argmax(dim=1) == y).float().mean())
        loss = float(nn.functional.cross_entropy(outputs, y))
        values, now = sum(each.numel() for each in sent.values()), paced.coordinator.now
        print(f"LORA step {step} clock {now:.1f} loss {loss:.4f} accuracy {reached:.4f} values {values}", flush=True)
        if reached >= float(config["target"]):
            raise TargetReachedError(f"accuracy {reached:.4f} after {step} steps and {now:.1f} s")
        return MetricRecord({"accuracy": reached, "loss": loss, "clock": now})

    try:
        paced.start(
            grid=grid,
            initial_arrays=ArrayRecord(travelling(model)),
            num_rounds=number(config["num-server-rounds"]),
            evaluate_fn=evaluate,
        )
    except TargetReachedError as reached:
        print(f"LORA target {config['target']} reached: {reached}", flush=True)
