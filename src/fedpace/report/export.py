"""Exports recorded runs: rounds as CSV or parquet, the comparison as LaTeX, curves for TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from fedpace._base.checks import one_of
from fedpace._base.errors import MissingExtraError
from fedpace._base.files import keeping, write_atomically
from fedpace._base.names import cell
from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.cells import caption, columns, legend
from fedpace.report.events import event_file
from fedpace.report.tables import summarise

Target = Literal["csv", "parquet", "latex", "tensorboard"]
ROUNDS = ("round", "clock", "seconds", "overhead", "metric", "loss", "train_loss", "clients", "failed", "objective",
          "predicted_seconds", "status")  # fmt: skip
"""Columns of the table of rounds, after those that name the run."""
EVENTS = "events.out.tfevents.0.fedpace"
"""A name that TensorBoard looks for."""
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {sign: "\\" + sign for sign in "&%$#_{}"}
SPECIAL |= {numbers.TIMES: r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$", numbers.UNKNOWN: "--"}


def export_runs(runs: Sequence[RunRecord], folder: Path, target: Target) -> list[Path]:
    """Write the runs into `folder` for `target`, and return the files."""
    one_of(target, get_args(Target), "what to export to")
    under = list(dict.fromkeys(_delays(run) for run in runs))
    if target == "latex":
        parts = {name: [run for run in runs if _delays(run) == name] for name in under}
        return [
            _write(folder / (f"comparison-{name}.tex" if len(parts) > 1 else "comparison.tex"), latex(some).encode())
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
            row |= {"round": current.number, "clients": len(current.clients), "failed": len(current.failed)}
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


def latex(runs: Sequence[RunRecord]) -> str:
    """Return the comparison as a LaTeX table, for the package booktabs."""
    comparison = summarise(runs)
    shown = columns(comparison)
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\begin{{tabular}}{{{''.join('r' if column.number else 'l' for column in shown)}}}",
        r"    \toprule",
        "    " + " & ".join(_escaped(f"{column.heading} {column.sub}".strip()) for column in shown) + r" \\",
        r"    \midrule",
    ]
    for scheme in comparison.schemes:
        cells = [column.fill(scheme) for column in shown]
        texts = [_escaped(cell.text) + (f" ({_escaped(cell.note)})" if cell.note else "") for cell in cells]
        lines.append("    " + " & ".join(texts) + r" \\")
    lines += [
        r"    \bottomrule",
        r"  \end{tabular}",
        f"  \\caption{{{_escaped(caption(comparison))}. {_escaped(legend(comparison))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


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
            "round/clients": len(current.clients) if current.number else None,
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


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in text.replace("\n", " "))


def _write(path: Path, content: bytes) -> Path:
    with keeping(path):
        write_atomically(path, content)
    return path
