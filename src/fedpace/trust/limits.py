"""All constants of the bounds on clients (`fedpace.trust.bounds`). docs/trust.md has the measurements behind them."""

from __future__ import annotations

# -- the length of updates -------------------------------------------------------------------------------------------

CLIP = 10.0
"""Updates are clipped to this multiple of the fleet's reference length."""
REFERENCE_QUANTILE = 0.75
"""The reference is this quantile, over clients, of the longest update that each has sent. A quarter of the clients can
send updates of any length without moving it. A larger honest minority with long updates raises it."""
REFERENCE_STEPS = 50.0
"""The reference is at most (1 + step / this) times the same quantile of the first update that each client has sent.
Otherwise attackers could push the model away, which makes honest updates longer, and push further each time."""
MIN_CLIENTS = 4
"""Clients that must have sent an update before there is a reference. Smaller fleets are not clipped."""
FIRST_RMS = 100.0
"""Without a reference, the largest root mean square of the change of the parameters."""
FIRST_BUFFER = 1e6
"""Without a reference, the largest total change of running statistics or counters; large, because data need not be
scaled."""
LONGEST = 1e300
"""Longer updates are remembered as this length, so that saved numbers are finite."""

# -- weights ---------------------------------------------------------------------------------------------------------

SHARE_CAP, SHARE_FLEET = 0.5, 20
"""Largest share of the objective that a client can claim by its number of samples, and the fleet size from which this
holds. In a small fleet one client may really hold most of the data."""
WEIGHT_RATE = 10.0
"""Leaky bucket for a client's weight: it drains per step by this multiple of the client's share of the objective."""
WEIGHT_BURST = 5.0
"""Size of that bucket: a client can have the weight of this many whole steps at any time."""

# -- claimed delays --------------------------------------------------------------------------------------------------

TRANSFER_PART, TRANSFER_SECONDS = 0.25, 1.0
"""Allowance for the transfer: a client's reported seconds may be below the measured seconds by this fraction of them,
or by this many seconds (at most half of them), whichever is larger."""
LATE = 4.0
"""A claimed delay is corrected if the client is later than the fleet by this many standard errors."""
LEAST_SPREAD = 0.2
"""Smallest assumed spread of the logarithms of seconds, because a few similar answers do not prove a small spread."""

# -- claimed moments -------------------------------------------------------------------------------------------------

MOMENT_CLIP, MOMENT_SPREADS = 10.0, 5.0
"""The size of a moment is clipped to this multiple of the fleet's median size, or to this many robust standard
deviations of the log size above it, whichever is larger."""
MOMENT_KEPT = 0.1
"""A clip factor stays unchanged if its logarithm would change by less, because a change triggers recomputations."""
MOMENT_LOG_LIMIT = 600.0
"""Largest absolute logarithm of a clip factor, to avoid underflow."""

# -- evidence from a validation set ----------------------------------------------------------------------------------

MIN_JUDGED = 4
"""Number of a client's updates that must be compared with the validation set before it can be excluded."""
OPPOSED = -0.25
"""A client is excluded if the mean cosine of its updates with the server's own update is below this."""
