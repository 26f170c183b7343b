"""TensorBoard: one folder of event files per run; `tensorboard --logdir tensorboard` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from fedpace.tracking._base import Entry, Sink, TrackedRun, Tracker


@dataclass(frozen=True)
class Tensorboard(Tracker):
    """TensorBoard's event files.

    Args:
        folder: the log folder, for `tensorboard --logdir`. Runs are written into folders below it.
    """

    name: ClassVar[str] = "tensorboard"
    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)
    extra: ClassVar[str] = "tensorboard"

    folder: str = "tensorboard"

    def open(self, run: TrackedRun) -> Sink:
        """Create the run's folder with its options as a text, or continue in it."""
        return _Run(self, run)


class _Run:
    def __init__(self, tracker: Tensorboard, run: TrackedRun) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(tracker.folder) / _folder_name(run.experiment) / _folder_name(run.name)
        self.key = run.key or str(folder.resolve() / f"{datetime.now():%Y%m%d-%H%M%S-%f}")
        self._writer = EventFileWriter(self.key, flush_secs=10)
        if run.key is None:
            table = "\n".join(["|option|value|", "|-|-|", *(f"|{name}|{value}|" for name, value in run.config.items())])
            one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
            text = TensorProto(dtype="DT_STRING", string_val=[table.encode()], tensor_shape=one)
            described = Summary.Value(tag="options", metadata=create_summary_metadata("options", None), tensor=text)
            self._add(0, None, Summary(value=[described]))

    def log(self, entries: Sequence[Entry]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for entry in entries:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in entry.values.items()]
            self._add(entry.number, entry.time, Summary(value=values))
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()

    def _add(self, step: int, time: float | None, summary: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(step=step, summary=summary)
        event.wall_time = datetime.now().timestamp() if time is None else time
        self._writer.add_event(event)


def _folder_name(text: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in text).strip("._") or "run"
