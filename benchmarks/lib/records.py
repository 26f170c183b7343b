"""Recorded results: what made each of them, and whether the code that decides its figures has changed since.

`evidence.toml` declares the records, `evidence.json` has a stamp for each: release, commit, date, and a digest of every
source that decides its figures and of its golden runs. A record is current as long as these sources are the same;
comments, docstrings and blank lines do not count. It is also current if the sources changed but all golden runs are the
same: then the schemes decide as they did (tests/golden).
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECLARED = ROOT / "benchmarks" / "evidence.toml"
STAMPS = ROOT / "benchmarks" / "evidence.json"
ABSENT = "absent"
"""Digest of a source that did not exist yet."""
MOST_NAMED = 3
"""A note names at most so many files that have changed."""
Read = Callable[[str], str | None]
"""Returns the text of a source, or None if there is no such file."""


@dataclass(frozen=True)
class Stamp:
    """What made a record."""

    release: str
    commit: str
    date: str
    sha256: str
    """Of the recorded file."""
    code: dict[str, str]
    """Digest of each source that decides the figures."""
    golden: dict[str, str]
    """Digest of each file of golden runs of its schemes."""


@dataclass(frozen=True)
class Group:
    """Sources that belong together."""

    sources: tuple[str, ...]
    golden: str = ""
    """File of golden runs that show whether they decide as they did; empty = there is none."""


@dataclass(frozen=True)
class Record:
    """A recorded file, as declared."""

    name: str
    file: str
    commands: tuple[str, ...]
    groups: tuple[Group, ...]
    """Sources that decide its figures, with their golden runs."""
    quoted: tuple[str, ...]
    """Documents that quote it."""
    beside: tuple[str, ...] = ()
    """Files of other records whose rows count in its tables."""
    yardstick: str = ""
    """File that has the rows of the scheme that is judged, if its own file does not."""
    needs: str = ""
    writes: bool = False
    """Whether the last command writes the file, rather than its standard output being it."""

    @property
    def code(self) -> tuple[str, ...]:
        """All sources that decide its figures."""
        return tuple(dict.fromkeys(source for group in self.groups for source in group.sources))

    @property
    def golden(self) -> tuple[str, ...]:
        """All files of golden runs."""
        return tuple(group.golden for group in self.groups if group.golden)

    def changed(self, stamp: Stamp, read: Read | None = None) -> list[str]:
        """Return the sources that have changed since then, without groups whose golden runs are the same."""
        read = read or present
        now = digests((*self.code, *self.golden), read)
        then = stamp.code | stamp.golden
        moved = [group for group in self.groups if not group.golden or then.get(group.golden) != now[group.golden]]
        sources = dict.fromkeys(source for group in moved for source in group.sources)
        return [path for path in sources if then.get(path) != now[path]]

    def note(self, stamp: Stamp) -> str:
        """Return the sentence that a document has beside the figures."""
        made = f"Measured with release {stamp.release} (commit {stamp.commit}, {stamp.date})"
        if not (changed := self.changed(stamp)):
            return f"*{made}.*"
        names = [f"`{Path(path).name}`" for path in changed]
        if len(names) > MOST_NAMED:
            names = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} other files"]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        again = f" `make evidence ONLY={self.name}` measures it again." if self.commands else ""
        return f"*{made}, **before {listed} changed**: these are not figures of the present code.{again}*"


def declared(path: Path = DECLARED) -> dict[str, Record]:
    """Return all records by name."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    groups, golden = table.pop("code"), table.pop("golden")
    return {
        name: Record(
            name,
            entry["file"],
            tuple(entry["commands"]),
            tuple(Group(tuple(groups[group]), golden.get(group, "")) for group in entry["code"]),
            tuple(entry["quoted"]),
            tuple(entry.get("beside", ())),
            entry.get("yardstick", ""),
            entry.get("needs", ""),
            entry.get("writes", False),
        )
        for name, entry in table.items()
    }


def stamps(path: Path = STAMPS) -> dict[str, Stamp]:
    """Return the stamps by the names of their records."""
    return {name: Stamp(**entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def save(found: dict[str, Stamp], path: Path = STAMPS) -> None:
    """Write the stamps, sorted by name."""
    plain = {name: asdict(found[name]) for name in sorted(found)}
    path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


def stamped(record: Record, *, release: str, commit: str, date: str = "", read: Read | None = None) -> Stamp:
    """Return the stamp of a record that was just made, or made at a commit whose sources `read` returns."""
    when = date or datetime.now(UTC).date().isoformat()
    read = read or present
    return Stamp(
        release,
        commit,
        when,
        file_digest(ROOT / record.file),
        digests(record.code, read),
        digests(record.golden, read),
    )


def present(path: str) -> str | None:
    """Return the text of a source as it is now."""
    source = ROOT / path
    return source.read_text(encoding="utf-8") if source.exists() else None


def at_commit(commit: str) -> Read:
    """Return a reader of sources as they were at a commit."""

    def read(path: str) -> str | None:
        done = subprocess.run(
            ["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    return read


def digests(paths: Iterable[str], read: Read) -> dict[str, str]:
    """Return a digest of each file: of its code, if it is Python."""
    found = {}
    for path in paths:
        text = read(path)
        digest = code_digest if path.endswith(".py") else text_digest
        found[path] = ABSENT if text is None else digest(text)
    return found


def text_digest(text: str) -> str:
    """Return a digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_digest(text: str) -> str:
    """Return a digest of Python code that comments, docstrings and blank lines do not change."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    kept = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return text_digest("\n".join(kept))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
