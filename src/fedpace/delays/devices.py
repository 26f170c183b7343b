"""`devices`: delays of real phones, computed as in FedScale (Lai et al., ICML 2022).

    seconds = 3 x samples x milliseconds of inference / 1000 + 2 x model_kbit / kbit_per_second

The factor 3 is the ratio of training to inference, and 2 stands for download and upload. `samples` is the number of
samples that the client trains on per round: its local steps times its batch size, with a short last batch counted as it
is. The phones are FedScale's (`_phones.py`). Without a file of all phones (`file`, or $FEDPACE_DEVICES), compute and
bandwidth are drawn from shipped tables, independently: in the file, their logarithms have a correlation of 0.002.

FedScale's rounds do not vary. Ours vary as FLASH measured (Yang et al., WWW 2021; the figures are in its repository).
Over repeated measurements, the bandwidth of 19 phones, up and down, has a median coefficient of variation of 0.38. The
training time of three phones on four models has one of 0.04. Both become log-normal factors of mean 1, on transfer and
compute seconds.

Limits inherited from FedScale: compute does not depend on the model (its issue 6), and a phone's two figures come from
different sources. PyramidFL divides by compute where FedScale multiplies, which reverses the order of the phones.
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
"""Environment variable with the path of a file of all phones: CSV or parquet, with columns compute_ms_per_sample and
kbit_per_second."""

USUAL_SAMPLES = 400
"""Samples per round if the clients' work is unknown: 20 steps of 20, FedScale's default."""


class DeviceModel:
    """Delays of clients that each have a phone and an amount of work."""

    def __init__(
        self, compute: FloatArray, link: FloatArray, samples: FloatArray, *, varies: tuple[float, float], seed: int
    ):
        """Store training seconds per sample, transfer seconds, samples per round, and the variation of both times."""
        self._compute, self._link, self._samples = compute, link, samples
        self._varies, self._seed = varies, seed
        self._working = compute * samples
        self._mean = positive(self._working + link, "devices")

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        step = step_of(step)
        compute, network = (
            self._factor(step, part, cv) for part, cv in zip(("compute", "network"), self._varies, strict=True)
        )
        return frozen(self._working * compute + self._link * network)

    def speeds(self) -> FloatArray:
        """(n,) expected seconds of a round if all clients had the fleet's mean work: the speed of the phone alone."""
        return frozen(self._compute * self._samples.mean() + self._link)

    def dealt_anew(self, source: IntArray) -> DeviceModel:
        """Return the same clients with reassigned phones: client i gets the phone of client `source[i]`."""
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
    """CSV or parquet file of phones; empty = $FEDPACE_DEVICES if it is set, else the shipped tables."""
    samples: int = 0
    """Samples that every client trains on per round; 0 = each client's own number, or 400 if it is unknown."""
    model_bytes: int = 0
    """Bytes sent in each direction; 0 = the size of the trained model."""
    training: float = 3.0
    """Ratio of training time to inference time."""
    compute_variation: float = 0.04
    """Coefficient of variation of compute seconds between rounds; 0 = constant."""
    network_variation: float = 0.38
    """Coefficient of variation of transfer seconds between rounds; 0 = constant."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid; store the path from $FEDPACE_DEVICES, for the records."""
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
        """Return the delays of clients with unknown work."""
        return self.build_for(np.full(count_of(clients), USUAL_SAMPLES), model_bytes=model_bytes, seed=seed)

    def build_for(self, samples: ArrayLike, *, model_bytes: int, seed: int) -> DeviceModel:
        """Return the delays of clients that train on this many samples per round."""
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
        # Bandwidths span two decades, so quantiles are interpolated on a logarithmic scale.
        kbit = np.exp(np.interp(place, np.linspace(0, 1, KBIT.size), np.log(KBIT)))
        return ms, np.asarray(kbit)

    def _from_file(self, clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
        table = read_table(self.file, required=("compute_ms_per_sample", "kbit_per_second"))
        rows = dealt(len(table), clients, seed=seed, key=self.name)
        ms = table.numbers("compute_ms_per_sample", low=0.0, above=True)
        return ms[rows], table.numbers("kbit_per_second", low=0.0, above=True)[rows]
