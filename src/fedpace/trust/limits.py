"""Every constant of the trust package, with what it bounds. docs/trust.md has the measurements behind them."""

from __future__ import annotations

# -- the length of updates -------------------------------------------------------------------------------------------

CLIP = 10.0
"""An update is clipped to this many times the reference length of the fleet."""
REFERENCE_QUANTILE = 0.75
"""The reference is this quantile, over clients, of the longest update that each has sent. A quarter of the clients may
send updates of any length without moving it; an honest minority of a quarter or more is never clipped."""
REFERENCE_STEPS = 50.0
"""The reference is at most (1 + step / this) times the same quantile of the first update that each client has sent.
Otherwise an attacker could push the model away, make honest updates longer by that, and push further each time."""
MIN_CLIENTS = 4
"""Clients that must have been heard before there is a reference. Fleets with fewer clients are not clipped."""
FIRST_RMS = 100.0
"""Until then an update may change parameters by this much, root mean square."""
FIRST_BUFFER = 1e6
"""The same for running statistics and counters, in all: data need not be scaled."""
LONGEST = 1e300
"""Lengths beyond this are taken for it: files hold finite numbers."""

# -- weights ---------------------------------------------------------------------------------------------------------

SHARE_CAP, SHARE_FLEET = 0.5, 20
"""Most that one client may claim of the objective by the number of its samples, in fleets of so many clients or more.
In a small fleet one client may really hold most of the data."""
WEIGHT_RATE = 10.0
"""Most weight of one client over time: this many times its share of the objective per step, ..."""
WEIGHT_BURST = 3.0
"""... beyond the weight of this many whole steps, which a client may use at any time."""

# -- claimed delays --------------------------------------------------------------------------------------------------

TRANSFER_PART, TRANSFER_SECONDS = 0.25, 1.0
"""A client may report less than the server's clock measured by this part of it, or by these seconds."""
LATE = 4.0
"""Standard errors by which a client must answer later than the fleet before its claimed delay is corrected."""
LEAST_SPREAD = 0.2
"""Least spread of the logarithms of seconds: clients that were alike so far do not prove that the next answer is."""

# -- claimed moments -------------------------------------------------------------------------------------------------

MOMENT_CLIP, MOMENT_SPREADS = 10.0, 5.0
"""A moment is clipped to this many times the fleet's median size, or to this many robust standard deviations above it,
whichever is more."""
MOMENT_KEPT = 0.1
"""A correction is kept while its logarithm would change by less: every change has everything computed anew."""
MOMENT_LOG_LIMIT = 600.0
"""Logarithm of the strongest correction: more is no number."""

# -- evidence from a validation set ----------------------------------------------------------------------------------

MIN_JUDGED = 4
"""Answers that must have been compared with the validation set before a client can be excluded."""
OPPOSED = -0.25
"""Mean cosine of a client's updates with the server's own below which it is excluded."""
