"""`fedpace list`: what can be named in an experiment."""

from __future__ import annotations

import dataclasses
import inspect
import re
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding

from fedpace import registry
from fedpace.cli.common import print_json
from fedpace.cli.options import AsJson
from fedpace.core.errors import FedpaceError
from fedpace.core.types import facts_wanted
from fedpace.records.run import plain


class Kind(StrEnum):
    """What `fedpace list` can list."""

    SELECTORS = "selectors"
    DELAYS = "delays"
    DATASETS = "datasets"
    MODELS = "models"
    SERVERS = "servers"


def list_components(
    kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.SELECTORS, as_json: AsJson = False
) -> None:
    """List what can be named in an experiment, with its options and defaults."""
    catalogue: registry.Catalogue = getattr(registry, kind.value)
    entries = [_entry(catalogue, name) for name in catalogue.names()]
    if as_json:
        print_json({kind.value: entries})
        return
    console = Console(highlight=False, markup=False)
    console.print(f"{len(entries)} {kind.value}")
    for entry in entries:
        console.print(f"\n{entry['name']}", style="bold")
        for heading, text in _lines(entry):
            console.print(Padding(f"{heading}{text}", (0, 0, 0, 4)))


def _lines(entry: dict[str, Any]) -> list[tuple[str, str]]:
    options = ", ".join(f"{option} = {default}" for option, default in entry["options"].items())
    lines = [("", entry["summary"]), ("paper: ", entry.get("paper", ""))]
    if "needs" in entry:
        lines += [("needs: ", ", ".join(entry["needs"]) or "nothing"), ("uses: ", ", ".join(entry["uses"]))]
    return [line for line in [*lines, ("options: ", options or "none")] if line[1]]


def _paper(cls: Any) -> str:
    """Return the paper of a scheme: the module's header names it first, as every scheme's does."""
    header = inspect.getdoc(inspect.getmodule(cls)) or ""
    found = re.match(r'(.*?"[^"]+"[^.:;]*)[.:;]', " ".join(header.partition("\n\n")[2].split()))
    return found.group(1) if found else ""


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
