"""Commands that show what an experiment can be made of: `list`, `show`, `data get`, `data show` and `delays show`."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedpace._base import registry
from fedpace._base.checks import did_you_mean
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.registry import key_values
from fedpace.cli.parameters import AsJson, print_json
from fedpace.data import hub

if TYPE_CHECKING:
    from fedpace.data.federated import DataSummary
    from fedpace.delays.base import DelaySummary


data_app = typer.Typer(help="Fetch data sets and look at them.", no_args_is_help=True)

Folder = Annotated[
    str,
    typer.Option("--data", help="Folder of parquet files (default: $FEDPACE_DATA, else the Hub).", show_default=False),
]


@data_app.callback()
def _data_group() -> None:
    """Fetch data sets and look at them."""


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(hub.SOURCES)}.")],
    data: Folder = "",
    as_json: AsJson = False,
) -> None:
    """Fetch a public data set, decode it into the cache, and say what there is."""
    if name not in hub.SOURCES:
        _refuse(name)
    decoded = hub.load(name, data)
    splits = {
        split: {"rows": len(rows), "complete": decoded.source.rows[split]} for split, rows in decoded.splits.items()
    }
    if as_json:
        print_json(
            {
                "name": name,
                "repository": decoded.source.repository,
                "origin": decoded.origin,
                "cache": str(decoded.cache),
                "splits": splits,
                "classes": decoded.source.classes,
                "input_shape": decoded.source.shape,
                "owners": len(decoded.owner_names),
            }
        )
        return
    console = Console()
    table = Table(
        title=f"{name} ({decoded.source.repository})", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False
    )
    table.add_column("split")
    table.add_column("rows", justify="right")
    table.add_column("")
    for split, counts in splits.items():
        table.add_row(split, f"{counts['rows']:,}", _completeness(counts["rows"], counts["complete"]))
    console.print(table)
    if decoded.source.owner:
        console.print(f"  {len(decoded.owner_names):,} owners ({decoded.source.owner})", highlight=False)
    console.print(f"  from   {decoded.origin}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"  cache  {decoded.cache}", highlight=False, markup=False, soft_wrap=True)


@data_app.command("show")
def show_data(
    name: Annotated[str, typer.Argument(help="Name of a data set; `fedpace list datasets` shows them.")],
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="Option of the data set as KEY=VALUE, with VALUE as in TOML and commas between items; repeatable.",
        ),
    ] = None,
    data: Folder = "",
    png: Annotated[Path | None, typer.Option(help="Draw clients x classes into this file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the clients of a data set hold, as numbers and as a picture."""
    from fedpace.config import build
    from fedpace.data.federated import summarise

    cls = registry.datasets[name]
    options = _lists(cls, key_values(option or []))
    if data:
        if "folder" not in {field.name for field in dataclasses.fields(cls)}:
            raise InputError(f"--data is for data sets of parquet files, but {name} has none: leave it out")
        options["folder"] = data
    config = build(cls, options, f"data show {name}")
    federated = config.build(seed=seed)
    summary = summarise(federated)
    histograms = federated.label_histograms()
    if png is not None:
        if histograms is None:
            raise InputError(f"--png draws clients x classes, but {name} is regression and has no classes")
        from fedpace.report.picture import write_partition_png

        write_partition_png(histograms, png, title=f"{name}, seed {seed}: what each client holds")
    if as_json:
        print_json(
            {
                "name": name,
                "seed": seed,
                "options": dataclasses.asdict(config),
                **dataclasses.asdict(summary),
                "samples": [len(samples) for samples in federated.train],
                "test_samples": federated.test_sizes,
                "histograms": None if histograms is None else histograms.astype(int).tolist(),
            }
        )
        return
    console = Console()
    console.print(_data_numbers(f"{name}, seed {seed}", summary))
    if png is not None:
        console.print(f"  {png}", highlight=False, markup=False)


def _refuse(name: str) -> None:
    if name in registry.datasets.names():
        raise InputError(f"there is nothing to fetch for {name!r}: it is made or stored inside the package")
    raise InputError(f"there is no data set {name!r} to fetch. Known: {', '.join(hub.SOURCES)}")


def _lists(cls: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return options in which `features=age,visits` is a list: a shell takes the quotes of TOML's away."""
    several = {field.name for field in dataclasses.fields(cls) if str(field.type) == "tuple[str, ...]"}
    return {
        key: [part.strip() for part in value.split(",")] if key in several and isinstance(value, str) else value
        for key, value in options.items()
    }


def _completeness(rows: int, complete: int) -> str:
    return "complete" if rows == complete else f"a part: the Hub's has {complete:,}"


def _data_numbers(title: str, summary: DataSummary) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, show_edge=False, pad_edge=False
    )
    table.add_column()
    table.add_column(justify="right")
    for row in summary.rows():
        table.add_row(*row)
    return table


delays_app = typer.Typer(help="Look at delay models.", no_args_is_help=True)

BAR = 46
"""Characters of the longest bar."""


@delays_app.callback()
def _delays_group() -> None:
    """Look at delay models."""


@delays_app.command("show")
def show_delays(
    model: Annotated[str, typer.Argument(help="Name of a delay model; `fedpace list delays` shows them.")],
    clients: Annotated[int, typer.Option(help="Clients in a fleet.")] = 100,
    fleets: Annotated[int, typer.Option(help="Fleets to draw, one per seed.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds to draw of each.")] = 20,
    model_bytes: Annotated[int, typer.Option(help="Size of the model that travels.")] = 1_600_000,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", help="Option of the delay model as KEY=VALUE, with VALUE as in TOML; repeatable."
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the histogram into this file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show quantiles and a histogram of the seconds that clients take."""
    if clients < 1 or fleets < 1:
        raise InputError(f"--clients and --fleets must be at least 1, but {clients} and {fleets} came")
    from fedpace.config import build
    from fedpace.delays.base import summarise as summarise_delays

    config = build(registry.delays[model], key_values(option or []), f"delays show {model}")
    drawn = (config.build(clients, model_bytes=model_bytes, seed=seed) for seed in range(fleets))
    summary = summarise_delays(*drawn, rounds=rounds)
    if png is not None:
        from fedpace.report.picture import write_delays_png

        write_delays_png(summary, png, title=f"{model} delays")
    if as_json:
        print_json(
            {
                "model": model,
                "clients": clients,
                "fleets": fleets,
                "rounds": rounds,
                "seconds": dict(summary.rows()),
                "histogram": {"edges": summary.edges.tolist(), "counts": summary.counts.tolist()},
            }
        )
        return
    console = Console()
    console.print(_delay_numbers(model, summary))
    console.print(_histogram(summary))
    if png is not None:
        console.print(f"  {png}", highlight=False, markup=False)


def _delay_numbers(model: str, summary: DelaySummary) -> Table:
    table = Table(
        title=f"{model}: {summary.fleets} fleets of {summary.clients} clients, {summary.rounds} rounds each",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("seconds", justify="right")
    for name, value in summary.rows():
        table.add_row(name, f"{value:.1%}" if name.startswith("share") else f"{value:,.1f}")
    return table


def _histogram(summary: DelaySummary) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    most, total = max(int(summary.counts.max()), 1), int(summary.counts.sum())
    for low, high, count in zip(summary.edges[:-1], summary.edges[1:], summary.counts, strict=True):
        bar = "█" * round(BAR * int(count) / most)
        table.add_row(f"{low:,.0f} to {high:,.0f} s", bar, f"{count / total:.1%}")
    return table


KINDS = ("selectors", "delays", "datasets", "models", "servers", "robust", "admission", "trackers")
"""What `fedpace list` can list, as the registry calls it."""
WORDS = {"schemes": "selectors"}
"""Other names of the kinds."""
NOUNS = {"robust": "robust rules, each in place of the weighted mean", "admission": "admission policies"}
"""Plural of a kind in sentences, if it is not its name."""
VALIDATES = "a validation set on the server: validation = N, --validation N"
ADVICE = {
    "pace-async": "use this scheme, unless training must be synchronous",
    "pace": "use this scheme for synchronous rounds",
}
"""The two recommended schemes; docs/howto/choose.md says when to use another."""
APART = " " * 4
"""What formulas and programs begin with in a docstring."""
ITEM = re.compile(r"(- |\d+\. )")
ComponentKind = Annotated[str, typer.Argument(help=f"What to list: {', '.join([*WORDS, *KINDS[1:]])}.")]


def list_components(
    kind: ComponentKind = "schemes",
    long: Annotated[bool, typer.Option("--long", help="With papers, needs, options and their defaults.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the components that an experiment can name, one line each."""
    kind = WORDS.get(kind, kind)
    asked = next((word for word, meant in WORDS.items() if meant == kind), kind)
    if kind not in KINDS:
        known = [name for each in KINDS for name in _catalogue(each).names()]
        kinds = [*WORDS, *KINDS]
        hint = f"`fedpace show {kind}` shows it" if kind in known else "`fedpace show NAME` shows one of them"
        near = did_you_mean(kind, kinds)
        raise InputError(f"expected one of {', '.join(kinds)} to list, but {kind!r} came.{near} {hint}")
    catalogue = _catalogue(kind)
    entries = [_entry(catalogue, name) for name in catalogue.names()]
    if as_json:
        print_json({kind: entries})
        return
    console = Console(highlight=False, markup=False)
    more = "`fedpace show NAME` shows one in full" + ("" if long else f"; `fedpace list {asked} --long` says more")
    said = f"{len(entries)} {NOUNS.get(kind, kind)}; {more}."
    if kind == "selectors":
        said = (
            f"{len(entries)} schemes; {more}. Use pace-async. For synchronous rounds, use pace. The others "
            "are for comparisons, and for the cases in `docs/howto/choose.md`."
        )
        entries.sort(key=lambda entry: list(ADVICE).index(entry["name"]) if entry["name"] in ADVICE else len(ADVICE))
    console.print(said)
    if not long:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for entry in entries:
            table.add_row(Text(entry["name"]), Text(entry["summary"]))
        console.print()
        console.print(table)
        return
    for entry in entries:
        console.print(f"\n{entry['name']}", style="bold")
        for heading, text in _lines(entry):
            console.print(Padding(f"{heading}{text}", (0, 0, 0, 4)))


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A scheme, or a delay model, data set, model, server step or robust rule.", metavar="SCHEME"
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show one scheme: what it does, what it needs, its options, and where it departs from its paper."""
    found = [kind for kind in KINDS if name in _catalogue(kind).names()]
    if not found:
        known = [other for kind in KINDS for other in _catalogue(kind).names()]
        raise InputError(
            f"there is no scheme, delay model, data set, model, server step or robust rule {name!r}."
            f"{did_you_mean(name, known)} `fedpace list` shows what there is"
        )
    entries = [{"kind": kind, **_details(_catalogue(kind), name)} for kind in found]
    if as_json:
        print_json(entries[0] if len(entries) == 1 else {"entries": entries})
        return
    console = Console(highlight=False, markup=False)
    for entry in entries:
        _print(entry, console)


def _print(entry: dict[str, Any], console: Console) -> None:
    console.print(f"{entry['name']}  ({_catalogue(entry['kind']).kind})", style="bold")
    for heading, text in _lines(entry):
        if not heading.startswith("options"):
            console.print(Padding(f"{heading}{text}", (0, 0, 0, 4)))
    if entry.get("server"):
        console.print(Padding(f"server step: {entry['server']}", (0, 0, 0, 4)))
    console.print("\nOptions" if entry["options"] else "\nNo options")
    for option, default in entry["options"].items():
        said = entry["meanings"].get(option, "")
        console.print(Padding(f"{option} = {default}", (0, 0, 0, 4)), style="bold")
        if said:
            console.print(Padding(said, (0, 0, 0, 8)))
    if entry["about"]:
        console.print(f"\n{reflowed(entry['about'], console.width)}", soft_wrap=True)
    if entry["kind"] == "selectors":
        others = "" if entry["name"] == "random" else "random,"
        console.print(f'\nTry it: fedpace compare --selectors "{others}{entry["name"]}"')
    if entry["kind"] == "robust":
        held = " --validation 100" if entry["validates"] else ""
        console.print(f"\nTry it: fedpace compare --robust {entry['name']}{held}")


def reflowed(text: str, width: int) -> str:
    """Return prose in lines of another width: paragraphs and list items are filled, formulas stay as they are."""
    return "\n\n".join("\n".join(_filled(block, width)) for block in text.split("\n\n"))


def _filled(block: str, width: int) -> list[str]:
    """Return the lines of a paragraph, of the items of a list, or of what is set apart by four blanks."""
    pieces: list[list[str]] = []
    for line in block.splitlines():
        if not pieces or ITEM.match(line) or line.startswith(APART) or pieces[-1][0].startswith(APART):
            pieces.append([line])
        else:
            pieces[-1].append(line)
    lines: list[str] = []
    for piece in pieces:
        if piece[0].startswith(APART):
            lines += piece
            continue
        item = ITEM.match(piece[0])
        hanging = " " * (item.end() if item else 0)
        words = " ".join(" ".join(piece).split())
        lines += textwrap.wrap(
            words, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
    return lines


def _catalogue(kind: str) -> registry.Catalogue:
    catalogue: registry.Catalogue = getattr(registry, kind)
    return catalogue


def _lines(entry: dict[str, Any]) -> list[tuple[str, str]]:
    options = ", ".join(f"{option} = {default}" for option, default in entry["options"].items())
    lines = [("", entry["summary"]), ("paper: ", entry.get("paper", ""))]
    if "needs" in entry and entry["name"] in ADVICE:
        lines.insert(1, ("", f"-> {ADVICE[entry['name']]}"))
    if "needs" in entry:
        lines += [("needs: ", ", ".join(entry["needs"]) or "nothing"), ("uses: ", ", ".join(entry["uses"]))]
    if entry.get("validates"):
        lines.append(("needs: ", VALIDATES))
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


def _details(catalogue: registry.Catalogue, name: str) -> dict[str, Any]:
    cls = catalogue[name]
    step = getattr(cls, "server", None)
    return {
        **_describe(name, cls),
        "meanings": _meanings(cls),
        "server": getattr(step, "name", "") if not callable(step) and not isinstance(step, property) else "",
        "about": _about(cls),
    }


def _about(cls: Any) -> str:
    """Return the header of the component's module; robust rules share theirs, and each says its own."""
    if hasattr(cls, "validates"):
        return (inspect.getdoc(cls) or "").partition("\n\n")[2]
    return inspect.getdoc(inspect.getmodule(cls)) or ""


def _meanings(cls: Any) -> dict[str, str]:
    """Return what the class says of each of its options, in its `Args:` or in the string below the field."""
    text = (inspect.getdoc(cls) or "").partition("Args:\n")[2]
    found = {
        entry.group(1): " ".join(entry.group(2).split())
        for entry in re.finditer(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    }
    bases: list[Any] = [each for each in cls.__mro__ if dataclasses.is_dataclass(each)]
    try:
        source = "\n".join(inspect.getsource(each) for each in bases)
    except OSError:  # a class that was made at a prompt
        source = ""
    for entry in re.finditer(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, flags=re.DOTALL | re.MULTILINE):
        found.setdefault(entry.group(1), " ".join(entry.group(2).split()))
    return {item.name: found[item.name] for item in dataclasses.fields(cls) if item.name in found}


def _describe(name: str, cls: Any) -> dict[str, Any]:
    from fedpace.core.types import facts_wanted

    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    options = {item.name: _default(item) for item in dataclasses.fields(cls)}
    entry = {"name": name, "summary": summary, "options": options}
    if hasattr(cls, "validates"):
        entry["validates"] = cls.validates
    if hasattr(cls, "needs"):
        entry["needs"] = sorted(need.value for need in cls.needs)
        entry["paper"] = _paper(cls)
        entry["uses"] = sorted(need.value for need in facts_wanted(cls) - cls.needs)
    return entry


def _default(item: Any) -> Any:
    """Return an option's default as it is written in TOML, where JSON has no word for it."""
    from fedpace.records.run import plain

    if item.default is dataclasses.MISSING:
        return "required" if item.default_factory is dataclasses.MISSING else plain(item.default_factory())
    if isinstance(item.default, float) and math.isinf(item.default):
        return "inf" if item.default > 0 else "-inf"
    return plain(item.default)
