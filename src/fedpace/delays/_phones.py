"""Compute and bandwidth tables of 51,496 phones; `devices` draws from them if no file of phones is given.

The data are the device capacities of FedScale's experiments (Lai et al., "FedScale: Benchmarking Model and System
Performance of Federated Learning at Scale", ICML 2022): compute from AI Benchmark, bandwidth from MobiPerf. They were
taken from a result file in the public repository liecn/PyramidFL (`obs_client_time.mat`, Apache-2.0). Only counts and
quantiles are kept, which are facts about that table.
"""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import IntArray


def _numbers(text: str) -> IntArray:
    numbers = np.array(text.split(), dtype=np.int64)
    numbers.setflags(write=False)
    return numbers


MS = _numbers(
    """
    15 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 38 39 40 41 42 43 44 46 49 50 51 54 55 56 61 64 72 74 75 82
    96 117 118 134 136 137 138 140 143 144 145 146 148 149 150 153 154 155 156 159 160 162 168 172 173 174 175
    176 179 183 189 190 191 192 193 199
    """
)
"""Milliseconds of inference per sample: all distinct values."""

PHONES = _numbers(
    """
    1115 1126 1472 697 1787 1463 3319 3305 1600 771 2581 1894 316 795 1450 378 362 388 707 755 377 362 371 397
    385 797 340 369 375 374 372 365 377 360 358 420 349 392 396 383 1124 379 355 359 805 331 368 373 1078 363
    714 375 1485 384 1061 377 346 354 379 415 384 381 368 353 371 736 738 368 362 723 731 356
    """
)
"""Number of phones with each value of `MS`."""

KBIT = _numbers(
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
