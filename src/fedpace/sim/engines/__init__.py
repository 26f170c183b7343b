"""Engines compute the simulated clients' work: in this process, in worker processes, or on a Ray cluster.

The engine never changes the results: random draws are keyed by seed, step and client, and answers come back in the
order of the requests.
"""

from __future__ import annotations

from typing import Literal

EngineName = Literal["auto", "inline", "processes", "ray"]
