"""CIFAR-10: 60,000 colour pictures of 32x32 pixels in ten classes (Krizhevsky 2009); `uoft-cs/cifar10` on the Hub.

The paper's Dirichlet and rotated CIFAR-10: 50 clients, alpha = 2, angles from U[0, 45] degrees. No augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.data._public_sets import LabelledImages


@dataclass(frozen=True)
class Cifar10(LabelledImages):
    """CIFAR-10 over clients: dirichlet, rotated, iid or power-law."""

    name: ClassVar[str] = "cifar10"
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    deviation: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)

    clients: int = 50
