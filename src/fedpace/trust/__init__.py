"""Limits on how far one client can move the model: validation, bounded influence and Byzantine-robust aggregation.

There are three levels (docs/trust.md):

1. **Validation, always on.** An update must be finite. The server checks shapes, dtypes, tasks and repeated answers
   when answers arrive. It does not use an invalid answer, and does not punish the client.
2. **Bounded influence, on by default** (`Trust`). The server clips long updates, caps the weight of each client over
   time, and bounds claims (seconds, delays, moments, numbers of samples) by what it observes.
3. **Robust aggregation, opt-in** (`fedpace.trust.robust`). Rules from the literature replace the weighted mean.

The direction of an update alone never excludes a client: an honest minority with a rare class looks exactly like an
attacker. Only a validation set on the server can tell them apart. Rules that use one exclude a client for a
while if they refuse its updates; `Coordinator.readmit` ends that.
"""

from fedpace.trust.bounds import Trust

__all__ = ["Trust"]
