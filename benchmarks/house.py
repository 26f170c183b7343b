"""How the source is laid out: modules, lines, modules with one importer, names used twice, file switches per step.

    python benchmarks/house.py                        prints the counts of this checkout
    python benchmarks/house.py --root ../other        ... of another checkout
    python benchmarks/house.py --switches             adds `benchmarks/switches.py`, which trains
    python benchmarks/house.py --list                 names the modules and the classes behind the counts

Counts are symptoms. A module with one importer may be an idea of its own; a name in two modules may be private to both.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPONENTS = ("selectors", "server", "delays", "data", "models", "policies")
"""Folders with one file per component: the registry finds these files by name, so nobody imports them."""


def module_of(path: Path, source: Path) -> str:
    """Return the dotted name of a file below `source`."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & modules


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE.parent, help="checkout to count (this one)")
    parser.add_argument("--switches", action="store_true", help="also count file switches per step")
    parser.add_argument("--list", action="store_true", help="name what is counted")
    options = parser.parse_args()
    source = options.root / "src"
    texts = {module_of(path, source): path.read_text() for path in source.rglob("*.py")}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for other in imported(tree, set(texts)) - {name}:
            importers[other].add(name)
    single = {
        name: next(iter(importers[name]))
        for name in texts
        if len(importers[name]) == 1 and not any(f".{part}." in name for part in COMPONENTS)
    }
    classes: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
    stems: dict[str, list[str]] = defaultdict(list)
    for name in texts:
        stems[name.rpartition(".")[2]].append(name)
    twice = {name: places for name, places in classes.items() if len(places) > 1}
    stems = {name: places for name, places in stems.items() if len(places) > 1}
    files = sorted(lines.values())
    print(f"modules                        {len(files):6d}")
    print(f"lines, with comments           {sum(files):6d}")
    print(f"median lines of a module       {statistics.median(files):6.0f}")
    print(f"longest module                 {files[-1]:6d}  {max(lines, key=lines.__getitem__)}")
    print(f"modules with one importer      {len(single):6d}")
    print(f"class names defined twice      {len(twice):6d}")
    print(f"module names used twice        {len(stems):6d}")
    if options.list:
        for title, found in (("one importer", single), ("classes", twice), ("modules", stems)):
            print(f"\n{title}")
            for name, where in sorted(found.items()):
                print(f"  {name:45} {where if isinstance(where, str) else ', '.join(sorted(where))}")
    if options.switches:
        subprocess.run([sys.executable, str(HERE / "switches.py")], check=True)


if __name__ == "__main__":
    main()
