"""Where clients can be trained, by name: free of torch, so that the command line can list them."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["auto", "inline", "processes", "ray"]
