"""A small transformer over characters with LoRA adapters, built from a config: nothing is downloaded.

`lora_model` needs the extra `lora` (transformers and peft). Only the adapters and the head need gradients. So only they
are sent to clients, averaged and remembered; the frozen body stays as it was built.
"""

from __future__ import annotations

import torch
from torch import nn

CHARACTERS = 80
"""LEAF's alphabet."""


class NextCharacter(nn.Module):
    """The last state of a transformer, and a linear layer over it that predicts the next character."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return a row of scores per window of characters."""
        states = self.body(input_ids=characters.long()).last_hidden_state
        return self.head(states[:, -1])


def lora_model(*, width: int = 64, layers: int = 2, heads: int = 4, rank: int = 4, seed: int = 0) -> nn.Module:
    """Return a GPT-2 with random weights, LoRA adapters on its attention, and a head."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=CHARACTERS,
        n_positions=80,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    return NextCharacter(get_peft_model(GPT2Model(config), adapters), width)


def trained_part(model: nn.Module) -> tuple[int, int]:
    """Return the number of parameters that travel, and of all parameters."""
    every = [parameter.numel() for parameter in model.parameters()]
    moving = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return sum(moving), sum(every)
