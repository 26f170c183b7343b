"""`devices`: real phones, as FedScale clocks them (Lai et al., ICML 2022).

    seconds = 3 x samples x milliseconds of inference / 1000 + 2 x model_kbit / kbit_per_second

The factor 3 is training over inference, the 2 is down and up. `samples` is what the client itself trains on in a round:
its local steps times its batch, a short last batch counted as it is. The phones are FedScale's (`_phones.py`). Without
the file of all of them (`file`, or $FEDPACE_DEVICES) compute and bandwidth are drawn from shipped tables,
independently of each other: in the file the correlation of their logarithms is 0.002.

FedScale's rounds do not vary. Ours do, by what FLASH measured (Yang et al., WWW 2021; the figures are in its
repository): the bandwidth of 19 phones, up and down, has a median coefficient of variation of 0.38 over repeated
measurements, and the training time of three phones on four models one of 0.04. Both become log-normal factors of mean
1, on the seconds of transfer and of compute.

Known limits, FedScale's: compute does not depend on the model (its issue 6), and a phone's two figures come from two
different sources. PyramidFL divides by compute where FedScale multiplies, which turns the order of the phones round.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.delays._phones import KBIT, MS, PHONES
from fedpace.delays.base import count_of, dealt, number, positive, size_of, step_of
from fedpace.delays.tables import read_table

FILE_VARIABLE = "FEDPACE_DEVICES"
"""Names the file of all phones: CSV or parquet, with compute_ms_per_sample and kbit_per_second."""

USUAL_SAMPLES = 400
"""Samples per round where nothing is known of the clients: 20 steps of 20, FedScale's default."""


class DeviceModel:
    """The delays of clients that each have a phone, and each an amount of work."""

    def __init__(
        self, compute: FloatArray, link: FloatArray, samples: FloatArray, *, varies: tuple[float, float], seed: int
    ):
        """Take seconds of training per sample, seconds of transfer, samples per round, and how much both vary."""
        self._compute, self._link, self._samples = compute, link, samples
        self._varies, self._seed = varies, seed
        self._working = compute * samples
        self._mean = positive(self._working + link, "devices")

    def expected(self) -> FloatArray:
        """(n,) mean seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        step = step_of(step)
        compute, network = (
            self._factor(step, part, cv) for part, cv in zip(("compute", "network"), self._varies, strict=True)
        )
        return frozen(self._working * compute + self._link * network)

    def speeds(self) -> FloatArray:
        """(n,) mean seconds of a round if everybody had the fleet's mean work: what a phone is worth by itself."""
        return frozen(self._compute * self._samples.mean() + self._link)

    def dealt_anew(self, source: IntArray) -> DeviceModel:
        """Return the same clients with other phones: client i has the one that client `source[i]` had."""
        return DeviceModel(
            self._compute[source], self._link[source], self._samples, varies=self._varies, seed=self._seed
        )

    def _factor(self, step: int, part: str, cv: float) -> FloatArray | float:
        if cv == 0.0:
            return 1.0
        sigma = math.sqrt(math.log1p(cv**2))
        normal = stream(self._seed, "delay", "devices", part, step).standard_normal(self._mean.size)
        return np.asarray(np.exp(sigma * normal - sigma**2 / 2))


@dataclass(frozen=True)
class DevicesDelays:
    """Real phones: training by samples, transfer by the model's bytes."""

    name: ClassVar[str] = "devices"

    file: str = ""
    """CSV or parquet file of phones; empty = $FEDPACE_DEVICES where that is set, else the shipped tables."""
    samples: int = 0
    """Samples that everybody trains on in a round; 0 = each client's own, and 400 where those are not known."""
    model_bytes: int = 0
    """Bytes that travel each way; 0 = those of the trained model."""
    training: float = 3.0
    """Seconds of training over those of inference."""
    compute_variation: float = 0.04
    """Coefficient of variation of the seconds of compute from round to round; 0 = constant."""
    network_variation: float = 0.38
    """The same of the seconds of transfer."""

    def __post_init__(self) -> None:
        """Check the options. The file that is read is part of them, so that records say what a run was made from."""
        if not isinstance(self.file, str):
            raise InputError(
                f"file of devices must be the path of a CSV or parquet file, or empty, but {self.file!r} came"
            )
        if not self.file:
            object.__setattr__(self, "file", os.environ.get(FILE_VARIABLE, ""))
        for option in ("samples", "model_bytes"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(f"{option} of devices must be a whole number of at least 0, but {value!r} came")
        number(self.training, "training of devices", low=0.0, above=True)
        number(self.compute_variation, "compute_variation of devices", low=0.0, high=5.0)
        number(self.network_variation, "network_variation of devices", low=0.0, high=5.0)

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DeviceModel:
        """Return the delays of clients of whose work nothing is known."""
        return self.build_for(np.full(count_of(clients), USUAL_SAMPLES), model_bytes=model_bytes, seed=seed)

    def build_for(self, samples: ArrayLike, *, model_bytes: int, seed: int) -> DeviceModel:
        """Return the delays of clients that train on so many samples per round."""
        work = float_array(samples, "samples of devices")
        count_of(work.size)
        if not ((work > 0) & np.isfinite(work)).all():
            raise InputError(f"samples of devices are above 0 for every client, but {work.min():g} came")
        if self.samples:
            work = np.full(work.size, float(self.samples))
        own = size_of(model_bytes)
        size = self.model_bytes or own
        ms, kbit = self._from_file(work.size, seed) if self.file else self._drawn(work.size, seed)
        return DeviceModel(
            self.training * ms / 1000,
            2 * 8 * size / 1000 / kbit,
            work,
            varies=(self.compute_variation, self.network_variation),
            seed=seed,
        )

    def _drawn(self, clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
        phone, place = (stream(seed, "delay", self.name, key).random(clients) for key in ("ms", "kbit"))
        shares = np.cumsum(PHONES) / PHONES.sum()
        ms = MS[np.minimum(np.searchsorted(shares, phone, side="right"), MS.size - 1)].astype(np.float64)
        # Bandwidths spread over two decades: between two quantiles their logarithm is taken to be even.
        kbit = np.exp(np.interp(place, np.linspace(0, 1, KBIT.size), np.log(KBIT)))
        return ms, np.asarray(kbit)

    def _from_file(self, clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
        table = read_table(self.file, required=("compute_ms_per_sample", "kbit_per_second"))
        rows = dealt(len(table), clients, seed=seed, key=self.name)
        ms = table.numbers("compute_ms_per_sample", low=0.0, above=True)
        return ms[rows], table.numbers("kbit_per_second", low=0.0, above=True)[rows]
