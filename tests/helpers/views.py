"""What a scheme is shown of clients that are described by their moments and delays."""

from __future__ import annotations

import math

import numpy as np

from fedpace import View
from fedpace.moments import MomentBank


def view_of_moments(moments, delay, share=None, available=None):
    """Return clients of one feature, whose second moments are given, or of several, as factors; None = unknown."""
    bank = MomentBank(len(moments))
    for row, moment in enumerate(moments):
        if moment is not None:
            bank.put(row, [[math.sqrt(moment)]] if np.isscalar(moment) else moment)
    count = len(moments)
    known = [moment is not None for moment in moments]
    return View(
        step=0,
        now=0.0,
        available=np.array(known if available is None else available),
        share=np.full(count, 1 / count) if share is None else np.asarray(share, float) / np.sum(share),
        delay=np.array(delay, float),
        loss=np.full(count, np.nan),
        loss_step=np.full(count, -1),
        participations=np.zeros(count, int),
        moments=bank,
    )
