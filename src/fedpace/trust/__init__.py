"""How far one client can move the model: validation, bounded influence, and Byzantine-robust aggregation.

Three levels, from what always holds to what an operator opts into (docs/trust.md):

1. **Validation, always on.** An update must be finite. Shapes, dtypes, tasks and repeated answers are checked where
   answers arrive. An answer that fails is not used; nothing else follows from it.
2. **Bounded influence, on by default** (`Trust`). Long updates are clipped, the weight of one client is capped per step
   and over time, and claims (seconds, delays, moments, numbers of samples) are bounded by what the server sees.
3. **Robust aggregation, opt-in** (`fedpace.trust.robust`): rules from the literature in place of the weighted mean.

No level looks at the direction of an update to decide whether a client is honest: an honest minority that holds a rare
class looks exactly like an attacker. Only a validation set on the server can tell them apart. Rules that use one may
exclude a client; `Coordinator.readmit` takes that back.
"""

from fedpace.trust.bounds import Trust

__all__ = ["Trust"]
