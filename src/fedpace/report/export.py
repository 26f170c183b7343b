"""Writes files from recorded runs: the reports of a folder, and exports for other programs.

`write_reports` writes numbers, page and picture. `export_runs` writes rounds as CSV or parquet, the comparison as
LaTeX, and curves for TensorBoard.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from fedpace._base.checks import cell, one_of
from fedpace._base.errors import MissingExtraError
from fedpace._base.files import json_bytes, keeping, write_atomically
from fedpace.records.run import RunRecord
from fedpace.report.comparison import Comparison, summarise
from fedpace.report.page import write_page
from fedpace.report.picture import write_png
from fedpace.report.tables import latex, scheme_table

Format = Literal["csv", "parquet", "latex", "tensorboard"]
ROUNDS = ("round", "clock", "seconds", "overhead", "metric", "loss", "train_loss", "clients", "failed", "objective",
          "predicted_seconds", "status")  # fmt: skip
"""Columns of the table of rounds, after those that name the run."""
EVENTS = "events.out.tfevents.0.fedpace"
"""A name that TensorBoard looks for."""


def report_files(folder: Path, suffix: str = "") -> tuple[Path, Path, Path]:
    """Return the paths of page, picture and numbers; `suffix` keeps the reports of another target beside them."""
    names = (f"report{suffix}.html", f"report{suffix}.png", f"comparison{suffix}.json")
    page, picture, figures = (folder / name for name in names)
    return page, picture, figures


def write_reports(
    runs: Sequence[RunRecord], folder: Path, comparison: Comparison | None = None, suffix: str = ""
) -> Comparison:
    """Write the files that `report_files` names, and return the comparison."""
    comparison = comparison or summarise(runs)
    title = str(runs[0].info.experiment.get("name", folder.name))
    page, picture, figures = report_files(folder, suffix)
    with keeping(figures):
        write_atomically(figures, json_bytes(comparison.as_json()))
        write_page(runs, comparison, page, title=title)
        write_png(runs, comparison, picture)
    return comparison


def export_runs(runs: Sequence[RunRecord], folder: Path, target: Format) -> list[Path]:
    """Write the runs into `folder` for `target`, and return the files."""
    one_of(target, get_args(Format), "what to export to")
    under = list(dict.fromkeys(_delays(run) for run in runs))
    if target == "latex":
        parts = {name: [run for run in runs if _delays(run) == name] for name in under}
        return [
            _write(
                folder / (f"comparison-{name}.tex" if len(parts) > 1 else "comparison.tex"),
                latex(scheme_table(summarise(some))).encode(),
            )
            for name, some in parts.items()
        ]
    if target == "tensorboard":
        return [
            _write(folder / place / run.info.label / f"seed-{run.info.seed}" / EVENTS, _events(run))
            for run, place in ((run, _delays(run) if len(under) > 1 else "") for run in runs)
        ]
    tables = {"rounds": round_rows(runs), "cohorts": member_rows(runs)}
    make = _csv if target == "csv" else _parquet
    return [_write(folder / f"{name}.{target}", make(rows)) for name, rows in tables.items()]


def round_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return one row per round of every run."""
    found = []
    for run in runs:
        for current in run.rounds:
            row = {**_named(run), **{name: getattr(current, name, None) for name in ROUNDS}}
            row |= {"round": current.number, "clients": len(set(map(str, current.clients)))}
            row["failed"] = len(current.failed)
            found.append(row)
    return found


def member_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return one row per client of every cohort."""
    found = []
    for run in runs:
        for current in run.rounds:
            late = set(current.failed)
            for client, weight in zip(current.clients, current.weights or [None] * len(current.clients), strict=True):
                called = run.info.names[client] if run.info.names and isinstance(client, int) else str(client)
                found.append(
                    {**_named(run), "round": current.number, "client": called, "weight": weight}
                    | {"failed": client in late}
                )
    return found


def seed_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one row per run of a comparison, with its costs."""
    found = []
    for scheme in comparison.schemes:
        for result in scheme.results:
            row = {name: value for name, value in vars(result).items() if name not in ("cost", "at")}
            found.append({"scheme": scheme.label, **row, **vars(result.cost)})
    return found


def _named(run: RunRecord) -> dict[str, Any]:
    return {"scheme": run.info.label, "seed": run.info.seed, "delays": _delays(run)}


def _delays(run: RunRecord) -> str:
    """Return the name of the delay model; empty for a real server."""
    delays = run.info.experiment.get("delays", {})
    return str(delays.get("name", "")) if isinstance(delays, dict) else ""


def _events(run: RunRecord) -> bytes:
    scalars = []
    for current in run.rounds:
        values = {
            f"test/{run.info.metric}": current.metric,
            "test/loss": current.loss,
            "train/loss": current.train_loss,
            "round/virtual seconds": current.seconds,
            "round/clients": len(set(map(str, current.clients))) if current.number else None,
            "round/clock": current.clock,
        }
        scalars += [
            (tag, current.number, current.clock, float(value)) for tag, value in values.items() if value is not None
        ]
    return event_file(scalars)


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as cause:
        raise MissingExtraError("writing parquet", "data", "pyarrow") from cause
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


def _write(path: Path, content: bytes) -> Path:
    with keeping(path):
        write_atomically(path, content)
    return path


# -- files for TensorBoard, without TensorBoard ----------------------------------------------------------------------

# A file is a sequence of records (length, masked CRC, protobuf message, masked CRC). Only the fields that scalars need
# are written: Event{wall_time = 1, step = 2, file_version = 3, summary = 5}, Summary{value = 1}, Value{tag = 1,
# simple_value = 2}.

CASTAGNOLI = 0x82F63B78
VERSION = b"brain.Event:2"


def event_file(scalars: Iterable[tuple[str, int, float, float]]) -> bytes:
    """Return the bytes of a file of (tag, step, wall time, value)."""
    content = [_record(_double(1, 0.0) + _bytes(3, VERSION))]
    for tag, step, wall_time, value in scalars:
        entry = _bytes(1, tag.encode()) + _key(2, 5) + struct.pack("<f", value)
        content.append(_record(_double(1, wall_time) + _key(2, 0) + _varint(step) + _bytes(5, _bytes(1, entry))))
    return b"".join(content)


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked(length)) + message + struct.pack("<I", _masked(message))


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (CASTAGNOLI if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
