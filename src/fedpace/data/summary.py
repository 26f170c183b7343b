"""`summarise` describes a federated data set in a few numbers: clients, samples per client, label skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace.data.federated import FederatedData


@dataclass(frozen=True)
class DataSummary:
    """The numbers that `fedpace data show` prints."""

    clients: int
    train: int
    test: int
    smallest: int
    """Fewest training samples of a client."""
    median: float
    largest: int
    input_shape: tuple[int, ...]
    classes: int | None
    """Number of classes; None for regression."""
    classes_held: tuple[int, float, int] | None
    """Number of classes per client: fewest, mean, most."""
    skew: float | None
    """Mean total-variation distance of a client's label mix from the mix of all: 0 = equal, towards 1 = disjoint."""

    def rows(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs as text."""
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
    """Return the summary of a data set."""
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
