"""`fedpace list`: what can be named in an experiment."""

from __future__ import annotations

import dataclasses
import inspect
import re
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpace import registry
from fedpace.cli.common import AsJson, print_json
from fedpace.core.errors import FedpaceError
from fedpace.core.types import facts_wanted
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
    entries = [_entry(catalogue, name) for name in catalogue.names()]
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
        needs = [_needs(entry)] if kind is Kind.SELECTORS else []
        paper = f"\n{entry['paper']}" if entry.get("paper") else ""
        table.add_row(entry["name"], entry["summary"] + paper, *needs, options)
    Console().print(table)


def _paper(cls: Any) -> str:
    """Return the paper of a scheme: the module's header names it first, as every scheme's does."""
    header = inspect.getdoc(inspect.getmodule(cls)) or ""
    found = re.match(r'(.*?"[^"]+"[^.:;]*)[.:;]', " ".join(header.partition("\n\n")[2].split()))
    return found.group(1) if found else ""


def _needs(entry: dict[str, Any]) -> str:
    uses = f"\n(uses {', '.join(entry['uses'])})" if entry["uses"] else ""
    return (", ".join(entry["needs"]) or "nothing") + uses


def _entry(catalogue: registry.Catalogue, name: str) -> dict[str, Any]:
    try:
        return _describe(name, catalogue[name])
    except FedpaceError as error:  # one broken plug-in must not hide the rest
        return {"name": name, "summary": f"broken: {error}", "options": {}, "needs": [], "uses": []}


def _describe(name: str, cls: Any) -> dict[str, Any]:
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    options = {
        item.name: plain(item.default) if item.default is not dataclasses.MISSING else "required"
        for item in dataclasses.fields(cls)
    }
    entry = {"name": name, "summary": summary, "options": options}
    if hasattr(cls, "needs"):
        entry["needs"] = sorted(need.value for need in cls.needs)
        entry["paper"] = _paper(cls)
        entry["uses"] = sorted(need.value for need in facts_wanted(cls) - cls.needs)
    return entry
