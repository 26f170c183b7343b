"""Weights & Biases: one W&B run per run; offline if no key is known, so that it never asks for one."""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import urlparse

from fedpace.tracking._base import Entry, Sink, TrackedRun, Tracker

log = logging.getLogger("fedpace.tracking")


@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases.

    Args:
        project: W&B project.
        entity: W&B user or team; empty = your default.
        mode: `online` or `offline`; empty = `WANDB_MODE`, or online if a key is known, and offline otherwise.
        folder: folder in which W&B creates its folder `wandb`; empty = `WANDB_DIR`, or the current folder.
    """

    name: ClassVar[str] = "wandb"
    needs: ClassVar[tuple[str, ...]] = ("wandb",)
    extra: ClassVar[str] = "wandb"

    project: str = "fedpace"
    entity: str = ""
    mode: Literal["", "online", "offline"] = ""
    folder: str = ""

    def open(self, run: TrackedRun) -> Sink:
        """Start the run with its options as configuration, or continue it."""
        return _Run(self, run)


class _Run:
    def __init__(self, tracker: Wandb, run: TrackedRun) -> None:
        import wandb

        mode: Any = tracker.mode or os.environ.get("WANDB_MODE") or ("online" if _key_known() else "offline")
        if mode == "offline" and not tracker.mode:
            log.warning("fedpace: tracking with wandb offline; `wandb sync` uploads the runs in the folder wandb")
        self._run = wandb.init(
            project=tracker.project,
            entity=tracker.entity or None,
            name=run.name,
            group=run.experiment,
            config=dict(run.config),
            dir=tracker.folder or None,
            mode=mode,
            id=run.key,
            resume="allow" if run.key else None,
            reinit="create_new",  # several runs of a comparison may be open at once
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.key = str(self._run.id)

    def log(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._run.log(dict(entry.values), step=entry.number)

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status in ("diverged", "interrupted") else 0)


def _key_known() -> bool:
    """Whether W&B can log in without asking: a key is in the environment or in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
