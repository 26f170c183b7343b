"""What a tracker is: `Tracker` holds its options, and `Sink` receives the values of one run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, Protocol

from fedpace._base.errors import MissingExtraError
from fedpace._base.options import Options


class Entry(NamedTuple):
    """The values of one round."""

    number: int
    """Number of the round, or of the server's step."""
    time: float
    """Unix time in seconds at which the round was recorded."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run that a tracker shows."""

    name: str
    """Name of the run, such as `pace-async, seed 0`."""
    experiment: str
    """Name of the experiment, which groups runs."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Options of the run."""
    key: str | None = None
    """What the sink returned as `key` when this run was first tracked; None for a new run."""


class Sink(Protocol):
    """Receives the values of one run. All calls come from one thread, which is not that of the training."""

    @property
    def key(self) -> str:
        """Text by which the tracker finds this run again after it was resumed."""

    def log(self, entries: Sequence[Entry]) -> None:
        """Record rounds, in order."""

    def close(self, status: str) -> None:
        """End the run: `reached`, `finished`, `diverged` or `interrupted`."""


@dataclass(frozen=True)
class Tracker(Options):
    """Options of a tracker. A subclass is a frozen dataclass with a `name` and the method `open`."""

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    extra: ClassVar[str] = ""
    """The extra of fedpace that installs them."""

    def __post_init__(self) -> None:
        """Raise if an option is invalid or if a module is missing, before a run begins."""
        super().__post_init__()
        for module in self.needs:
            if not _installed(module):
                raise MissingExtraError(f"the tracker {self.name}", self.extra, module)

    @abstractmethod
    def open(self, run: TrackedRun) -> Sink:
        """Start to track a run, or continue if `run.key` is set."""


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
