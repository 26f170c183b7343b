"""FashionMNIST: 70,000 pictures of clothes, 28x28 pixels (Xiao et al. 2017); `zalando-datasets/fashion_mnist`.

The paper's Dirichlet and rotated FashionMNIST: 100 clients, alpha = 2, angles from U[0, 45] degrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.data._public_sets import LabelledImages


@dataclass(frozen=True)
class FashionMnist(LabelledImages):
    """FashionMNIST over clients: dirichlet, rotated, iid or power-law."""

    name: ClassVar[str] = "fashion-mnist"
    mean: ClassVar[tuple[float, ...]] = (0.2860,)
    deviation: ClassVar[tuple[float, ...]] = (0.3530,)
