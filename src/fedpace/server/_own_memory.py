"""What a client, or a trusted aggregator for it, remembers where the server sees sums only.

The server rule is `fedpace.server._client_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.server_rule import norm
from fedpace.core.sums import Contribution, Member


@dataclass(frozen=True, eq=False)
class OwnMemory:
    """What a client, or a trusted aggregator for it, keeps between its tasks; the server never gets it."""

    offset: FloatArray | None = None
    """h: its newest opened update minus the reference of that version."""
    waiting: FloatArray | None = None
    """Its newest opened update, until the reference of its version comes."""
    version: int = -1
    """Version of its newest opened update."""

    def received(self, version: int, reference: FloatArray) -> OwnMemory:
        """Return the memory after the reference of a model version has come."""
        if self.waiting is None or version != self.version:
            return self
        return OwnMemory(self.waiting - np.asarray(reference, dtype=np.float64), None, version)

    def contribution(
        self,
        kind: Contribution,
        update: FloatArray,
        member: Member,
        ask: Mapping[str, float],
        reference: FloatArray | None = None,
    ) -> tuple[dict[str, FloatArray], dict[str, float], OwnMemory] | None:
        """Return the vectors and numbers that the client adds to the sums, and its memory if the group is opened.

        None = the client has lost its memory, and drops out of the group.

        Args:
            kind: of the group.
            update: the trained model minus the received one.
            member: the client's place in the group.
            ask: the client's numbers from `Group.asks`.
            reference: of the version that a late answer was trained from.
        """
        known = "old_version" in ask
        if known and (self.offset is None or self.version != ask["old_version"]):
            return None
        before = ask["scale"] * self.offset if known and self.offset is not None else np.zeros_like(update)
        length = norm(update)
        if kind == "late":
            assert reference is not None
            offset = update - np.asarray(reference, dtype=np.float64)
            memory = ask["new"] * offset
            scalars = {"length": ask["share"] * length}
            if known and self.offset is not None:
                memory = memory - ask["old"] * self.offset
                scalars["change"] = ask.get("change", 0.0) * norm(offset - before)
            return {"memory": memory}, scalars, OwnMemory(offset, None, member.version)
        w = ask["w"]
        scalars = {"uu": w * length**2, "length": w * length}
        vectors = {"update": w * (update - before) if kind == "mixed" else w * update}
        if kind == "fresh":
            vectors["offset"] = w * before
            scalars |= {"oo": w * float(before @ before), "uo": w * float(update @ before)}
        return vectors, scalars, OwnMemory(None, update, member.version)
