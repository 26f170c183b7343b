"""A data set over clients in a few numbers: how many, how much each, how different."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace.data.federated import FederatedData


@dataclass(frozen=True)
class DataSummary:
    """What `fedpace data show` shows."""

    clients: int
    train: int
    test: int
    smallest: int
    """Training samples of the client that has fewest."""
    median: float
    largest: int
    input_shape: tuple[int, ...]
    classes: int | None
    """None: regression."""
    classes_held: tuple[int, float, int] | None
    """Classes that a client holds: fewest, mean, most."""
    skew: float | None
    """Mean total-variation distance of a client's label mix from the mix of all: 0 = equal, towards 1 = disjoint."""

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values for people to read."""
        shown = [
            ("clients", f"{self.clients:,}"),
            ("training samples", f"{self.train:,}"),
            ("a client's: fewest / median / most", f"{self.smallest:,} / {self.median:,.0f} / {self.largest:,}"),
            ("test samples, all clients'", f"{self.test:,}"),
            ("input", " x ".join(map(str, self.input_shape))),
        ]
        if self.classes is None or self.classes_held is None or self.skew is None:
            return [*shown, ("classes", "none: regression")]
        fewest, mean, most = self.classes_held
        return [
            *shown,
            ("classes", str(self.classes)),
            ("held by a client: fewest / mean / most", f"{fewest} / {mean:.1f} / {most}"),
            ("label skew (0 equal, 1 disjoint)", f"{self.skew:.3f}"),
        ]


def summarise(data: FederatedData) -> DataSummary:
    """Summarise data over clients."""
    sizes = np.array([len(samples) for samples in data.train])
    histograms = data.label_histograms()
    held, skew = None, None
    if histograms is not None:
        counts = (histograms > 0).sum(axis=1)
        held = (int(counts.min()), float(counts.mean()), int(counts.max()))
        mixes = histograms / histograms.sum(axis=1, keepdims=True)
        overall = histograms.sum(axis=0) / histograms.sum()
        skew = float(np.abs(mixes - overall).sum(axis=1).mean() / 2)
    return DataSummary(
        clients=data.clients,
        train=int(sizes.sum()),
        test=len(data.test),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        input_shape=data.input_shape,
        classes=data.classes,
        classes_held=held,
        skew=skew,
    )
