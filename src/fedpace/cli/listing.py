"""`fedpace list`: what can be named in an experiment."""

from __future__ import annotations

import dataclasses
import inspect
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpace import registry
from fedpace.cli.common import AsJson, print_json
from fedpace.records.run import plain


class Kind(StrEnum):
    """What `fedpace list` can list."""

    SELECTORS = "selectors"
    DELAYS = "delays"
    DATASETS = "datasets"
    MODELS = "models"


def list_components(
    kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.SELECTORS, as_json: AsJson = False
) -> None:
    """List what can be named in an experiment, with its options and defaults."""
    catalogue: registry.Catalogue = getattr(registry, kind.value)
    entries = [_describe(name, catalogue[name]) for name in catalogue.names()]
    if as_json:
        print_json({kind.value: entries})
        return
    table = Table(title=f"{kind.value} ({len(entries)})", title_justify="left", show_lines=True)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it is")
    if kind is Kind.SELECTORS:
        table.add_column("needs")
    table.add_column("options")
    for entry in entries:
        options = "\n".join(f"{option} = {default}" for option, default in entry["options"].items()) or "none"
        needs = [", ".join(entry["needs"]) or "nothing"] if kind is Kind.SELECTORS else []
        table.add_row(entry["name"], entry["summary"], *needs, options)
    Console().print(table)


def _describe(name: str, cls: Any) -> dict[str, Any]:
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    options = {
        item.name: plain(item.default) if item.default is not dataclasses.MISSING else "required"
        for item in dataclasses.fields(cls)
    }
    entry = {"name": name, "summary": summary, "options": options}
    if hasattr(cls, "needs"):
        entry["needs"] = sorted(need.value for need in cls.needs)
    return entry
