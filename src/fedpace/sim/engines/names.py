"""Names of the engines, in a module without torch, so that the command line loads fast."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["auto", "inline", "processes", "ray"]
