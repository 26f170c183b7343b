"""Fine-tune a transformer with LoRA on the lines of Shakespeare's roles: pace-async, FedBuff and over-selection.

    pip install 'fedpace[sim,data,report,lora]'
    python examples/lora/compare.py                          Shakespeare, if $FEDPACE_DATA has it, else made-up text
    python examples/lora/compare.py --clients 20 --rounds 60 --seeds 3

The body is first trained for a while on text of other roles, as a pretrained model would be, and is then frozen. Each
client is a role. Only the adapters and the head travel.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from model import CHARACTERS, lora_model, trained_part
from torch import nn

import fedpace
from fedpace._base.errors import FedpaceError
from fedpace.data.shakespeare import Shakespeare
from fedpace.delays.lognormal import LognormalDelays

WINDOW = 80


def roles(count: int, windows: int, seed: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], str]:
    """Return one pair (windows, next characters) per role, and where they come from."""
    try:
        found = Shakespeare(clients=count, samples=windows, min_samples=max(windows, 150)).build(seed=seed)
    except FedpaceError as cause:
        print(f"no Shakespeare here, so the text is made up: {cause}")
        return [made_up(windows, client, seed) for client in range(count)], "made-up text"
    return [(samples.inputs, samples.targets) for samples in found.train], "shakespeare"


def made_up(windows: int, client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return text of a Markov chain: all clients share its rules, and each prefers some characters of its own."""
    common = np.random.default_rng(seed).dirichlet(np.full(CHARACTERS, 0.05), CHARACTERS)
    rng = np.random.default_rng([seed, client])
    own = rng.dirichlet(np.full(CHARACTERS, 0.05), CHARACTERS)
    chain = np.cumsum(0.7 * common + 0.3 * own, axis=1)
    text = np.zeros(windows + WINDOW + 1, dtype=np.uint8)
    for place, drawn in enumerate(rng.random(len(text) - 1)):
        text[place + 1] = min(CHARACTERS - 1, int(np.searchsorted(chain[text[place]], drawn)))
    return np.lib.stride_tricks.sliding_window_view(text, WINDOW)[:windows].copy(), text[WINDOW : WINDOW + windows]


def pretrained(model: nn.Module, inputs: np.ndarray, targets: np.ndarray, *, steps: int, seed: int) -> nn.Module:
    """Train the whole body on other roles' text, as a stand-in for a download; then freeze it again."""
    body = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for parameter in body:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(0, len(targets), 64)
        outputs = model(torch.from_numpy(inputs[rows].astype(np.int64)))
        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(targets[rows].astype(np.int64)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for parameter in body:
        parameter.requires_grad_(False)
    return model


def main() -> None:
    """Compare the schemes, and print the table and the facts behind it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--windows", type=int, default=400, help="windows per role")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pretrain", type=int, default=150, help="steps of training the body on other roles")
    parser.add_argument("--target", type=float, default=None, help="accuracy to hold")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--out", default=None, help="folder for the runs")
    options = parser.parse_args()
    began = time.process_time()
    everyone, source = roles(2 * options.clients, options.windows, seed=0)
    others, clients = everyone[: options.clients], everyone[options.clients :]
    model = pretrained(
        lora_model(),
        np.concatenate([inputs for inputs, _ in others]),
        np.concatenate([targets for _, targets in others]),
        steps=options.pretrain,
        seed=0,
    )
    moving, every = trained_part(model)
    print(f"{source}: {len(clients)} roles; {moving:,} of {every:,} parameters travel and are remembered")
    held = max(1, options.windows // 5)
    train = [(inputs[: -held - WINDOW], targets[: -held - WINDOW]) for inputs, targets in clients]
    test = (
        np.concatenate([inputs[-held:] for inputs, _ in clients]),
        np.concatenate([targets[-held:] for _, targets in clients]),
    )
    size = max(2, options.clients // 3)
    results = fedpace.compare(
        train,
        test=test,
        model=model,
        head="head",
        schemes=["pace-async", f"fedbuff(buffer={size})", ("over-selection", f"random(k={size}, overcommit=1.3)")],
        delays=LognormalDelays(),
        lr=options.lr,
        epochs=options.epochs,
        batch=32,
        seeds=options.seeds,
        rounds=options.rounds,
        target=options.target,
        name="lora",
        out=options.out,
        overwrite=options.out is not None,
    )
    print(results)
    facts = {"source": source, "moving": moving, "parameters": every, **vars(options)}
    print(json.dumps({**facts, "cpu_seconds": round(time.process_time() - began)}))


if __name__ == "__main__":
    main()
