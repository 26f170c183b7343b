"""Answers to a warm-up that is not waited for to the end."""

from __future__ import annotations

import torch

from fedpace.core.checks import FloatArray, IntArray


class Awaited:
    """Clients whose answer to a warm-up is still to come, and the model that they were sent."""

    def __init__(self) -> None:
        self.model = torch.zeros(0)
        self.step = 0
        self.answers: dict[int, tuple[float, float]] = {}
        """Client -> when it answers, and after how many seconds that is."""

    def add(self, model: torch.Tensor, step: int, clients: IntArray, when: FloatArray, seconds: FloatArray) -> None:
        """Wait for these clients, which were sent the model of `step`."""
        if clients.size:
            self.model, self.step = model.clone(), step
        self.answers |= dict(zip(clients.tolist(), zip(when.tolist(), seconds.tolist(), strict=True), strict=True))

    def due(self, now: float) -> tuple[torch.Tensor, list[int], list[float]]:
        """Return the model, and who has answered it by now after how many seconds; they are waited for no more."""
        clients = sorted(client for client, (when, _) in self.answers.items() if when <= now)
        return self.model, clients, [self.answers.pop(client)[1] for client in clients]
