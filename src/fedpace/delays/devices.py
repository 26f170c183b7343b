"""`devices`: delays of real phones, computed as in FedScale (Lai et al., ICML 2022).

    seconds = 3 x samples x milliseconds of inference / 1000 + 2 x model_kbit / kbit_per_second

The factor 3 is the ratio of training to inference, and 2 stands for download and upload. `samples` is the number of
samples that the client trains on per round: its local steps times its batch size, with a short last batch counted as it
is. Without a file of all phones (`file`, or $FEDPACE_DEVICES), compute and bandwidth are drawn from the tables below,
independently: in the file, their logarithms have a correlation of 0.002.

The tables describe 51,496 phones, the device capacities of FedScale's experiments: compute from AI Benchmark, bandwidth
from MobiPerf. They were taken from a result file in the public repository liecn/PyramidFL (`obs_client_time.mat`,
Apache-2.0). Only counts and quantiles are kept, which are facts about that table.

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
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.delays.base import Positive, check_clients, check_model_bytes, check_step, checked_delays, deal_rows
from fedpace.delays.csv_files import read_table


def _numbers(text: str) -> IntArray:
    numbers = np.array(text.split(), dtype=np.int64)
    numbers.setflags(write=False)
    return numbers


COMPUTE_MS = _numbers(
    """
    15 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 38 39 40 41 42 43 44 46 49 50 51 54 55 56 61 64 72 74 75 82
    96 117 118 134 136 137 138 140 143 144 145 146 148 149 150 153 154 155 156 159 160 162 168 172 173 174 175
    176 179 183 189 190 191 192 193 199
    """
)
"""Milliseconds of inference per sample: all distinct values."""

PHONE_COUNTS = _numbers(
    """
    1115 1126 1472 697 1787 1463 3319 3305 1600 771 2581 1894 316 795 1450 378 362 388 707 755 377 362 371 397
    385 797 340 369 375 374 372 365 377 360 358 420 349 392 396 383 1124 379 355 359 805 331 368 373 1078 363
    714 375 1485 384 1061 377 346 354 379 415 384 381 368 353 371 736 738 368 362 723 731 356
    """
)
"""Number of phones with each value of `COMPUTE_MS`."""

BANDWIDTH_KBIT = _numbers(
    """
    1017 1062 1116 1141 1254 1393 1535 1634 1703 1775 1818 1867 1909 1932 1987 2026 2065 2092 2124 2211 2255
    2370 2476 2589 2691 2856 2905 3003 3187 3271 3503 3773 3860 3988 4086 4203 4474 4596 4686 4743 4799 4842
    4889 4947 5020 5232 5290 5490 5590 5872 6075 6207 6384 6622 6729 7037 7388 7599 7793 8097 8418 8728 8949
    9192 9392 9683 10079 10442 10831 11366 11837 12222 12636 12963 13545 13882 14573 15072 16543 18437 19751
    21975 22914 23368 24958 26863 28472 29917 31080 31719 32546 33567 36702 42360 47406 51663 63892 70834 86340
    100207 204057
    """
)
"""Bandwidth in kilobits per second: the minimum, every percentile, and the maximum."""


FILE_VARIABLE = "FEDPACE_DEVICES"
"""Environment variable with the path of a file of all phones: CSV or parquet, with columns compute_ms_per_sample and
kbit_per_second."""

DEFAULT_SAMPLES = 400
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
        self._mean = checked_delays(self._working + link, "devices")

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        step = check_step(step)
        compute, network = (
            self._factor(step, part, cv) for part, cv in zip(("compute", "network"), self._varies, strict=True)
        )
        return frozen(self._working * compute + self._link * network)

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the compute part of `draw(step)`, which grows with the work; transfer does not."""
        return frozen(self._working * self._factor(check_step(step), "compute", self._varies[0]))

    def expected_compute(self) -> FloatArray:
        """(n,) expected seconds of training in a round."""
        return frozen(self._working)

    def device_seconds(self) -> FloatArray:
        """(n,) expected seconds of a round if all clients had the fleet's mean work: the speed of the phone alone."""
        return frozen(self._compute * self._samples.mean() + self._link)

    def reassigned(self, source: IntArray) -> DeviceModel:
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
class DevicesDelays(Options):
    """Real phones: training by samples, transfer by the model's bytes."""

    name: ClassVar[str] = "devices"

    file: str = ""
    """CSV or parquet file of phones; empty = $FEDPACE_DEVICES if it is set, else the shipped tables."""
    samples: Annotated[int, AtLeast(0)] = 0
    """Samples that every client trains on per round; 0 = each client's own number, or 400 if it is unknown."""
    model_bytes: Annotated[int, AtLeast(0)] = 0
    """Bytes sent in each direction; 0 = the size of the trained model."""
    training: Positive = 3.0
    """Ratio of training time to inference time."""
    compute_variation: Annotated[float, Between(0, 5)] = 0.04
    """Coefficient of variation of compute seconds between rounds; 0 = constant."""
    network_variation: Annotated[float, Between(0, 5)] = 0.38
    """Coefficient of variation of transfer seconds between rounds; 0 = constant."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid; store the path from $FEDPACE_DEVICES, for the records."""
        super().__post_init__()
        if not self.file:
            object.__setattr__(self, "file", os.environ.get(FILE_VARIABLE, ""))

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DeviceModel:
        """Return the delays of clients with unknown work."""
        return self.build_for(np.full(check_clients(clients), DEFAULT_SAMPLES), model_bytes=model_bytes, seed=seed)

    def build_for(self, samples: ArrayLike, *, model_bytes: int, seed: int) -> DeviceModel:
        """Return the delays of clients that train on this many samples per round."""
        work = float_array(samples, "samples of devices")
        check_clients(work.size)
        if not ((work > 0) & np.isfinite(work)).all():
            raise InputError(f"samples of devices are above 0 for every client, but {work.min():g} came")
        if self.samples:
            work = np.full(work.size, float(self.samples))
        own = check_model_bytes(model_bytes)
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
        shares = np.cumsum(PHONE_COUNTS) / PHONE_COUNTS.sum()
        ms = COMPUTE_MS[np.minimum(np.searchsorted(shares, phone, side="right"), COMPUTE_MS.size - 1)].astype(
            np.float64
        )
        # Bandwidths span two decades, so quantiles are interpolated on a logarithmic scale.
        kbit = np.exp(np.interp(place, np.linspace(0, 1, BANDWIDTH_KBIT.size), np.log(BANDWIDTH_KBIT)))
        return ms, np.asarray(kbit)

    def _from_file(self, clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
        table = read_table(self.file, required=("compute_ms_per_sample", "kbit_per_second"))
        rows = deal_rows(len(table), clients, seed=seed, key=self.name)
        ms = table.numbers("compute_ms_per_sample", low=0.0, above=True)
        return ms[rows], table.numbers("kbit_per_second", low=0.0, above=True)[rows]
