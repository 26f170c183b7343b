"""When a synchronous round ends: one rule for virtual clocks and real ones."""

from __future__ import annotations

import math

import numpy as np

from fedpace.core.checks import BoolArray, FloatArray


def round_end(
    seconds: FloatArray, deadline: float = math.inf, *, enough: int = 0, answers: BoolArray | None = None
) -> float:
    """Return when the server goes on: everybody is there, `enough` of them are, or the deadline has come.

    Args:
        seconds: (k,) when each client is heard of; nobody = 0 s.
        deadline: seconds to wait at most.
        enough: answers that suffice; 0 = all.
        answers: (k,) who answers, where some crash instead: the server hears of a crash, but cannot use it.
    """
    if seconds.size == 0:
        return 0.0
    end = min(deadline, float(seconds.max()))
    usable = np.sort(seconds if answers is None else seconds[answers])
    if 0 < enough <= usable.size:
        end = min(end, float(usable[enough - 1]))
    return end
