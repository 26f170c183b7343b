"""MNIST: 70,000 handwritten digits of 28x28 pixels (LeCun et al., Proc. IEEE 1998); `ylecun/mnist` on the Hub.

The paper's Dirichlet and rotated MNIST: 100 clients, alpha = 2, angles from U[0, 45] degrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.data._public_sets import LabelledImages


@dataclass(frozen=True)
class Mnist(LabelledImages):
    """MNIST over clients: `dirichlet`, `rotated`, `iid` or `power-law`."""

    name: ClassVar[str] = "mnist"
    mean: ClassVar[tuple[float, ...]] = (0.1307,)
    deviation: ClassVar[tuple[float, ...]] = (0.3081,)
