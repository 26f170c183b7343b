"""All constants of `fedpace.trust`. docs/appendix/trust.md has the measurements behind them."""

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
MAX_DEPARTED = 10_000
"""Clients that have left and are still remembered."""

# -- claimed seconds -------------------------------------------------------------------------------------------------

TRANSFER_PART, TRANSFER_SECONDS = 0.25, 1.0
"""Allowance for the transfer: a client's reported seconds may be below the measured seconds by this fraction of them,
or by this many seconds (at most half of them), whichever is larger."""

# -- claimed moments -------------------------------------------------------------------------------------------------

MOMENT_CLIP, MOMENT_SPREADS = 10.0, 5.0
"""The size of a moment is clipped to this multiple of the fleet's median size, or to this many robust standard
deviations of the log size above it, whichever is larger."""
MOMENT_KEPT = 0.1
"""A clip factor stays unchanged if its logarithm would change by less, because a change triggers recomputations."""
MOMENT_LOG_LIMIT = 600.0
"""Largest absolute logarithm of a clip factor, to avoid underflow."""

# -- evidence from a validation set ----------------------------------------------------------------------------------

MAX_REFUSALS = 3
"""A client rests, that is, gets no task for a while, if the validation set refused this many of its updates in a row.
One is enough in a step in which it refused most updates: otherwise a scheme may ask the same attackers for ever."""
REST_STEPS = 8.0
"""Steps of the first rest. With each further refusal in a row the rest is twice as long."""
MAX_REST = 2.0**20
"""Steps of the longest rest, so that saved numbers are finite."""

# -- robust rules ----------------------------------------------------------------------------------------------------

CAP = 1e60
"""Largest absolute value of an entry of an update."""
SLACK = 1e-9
"""Smaller relative differences of weights or scores count as rounding errors."""
BLOCK = 1 << 17
"""Size of one block of coordinates in numbers; small enough to sort in the cache."""
