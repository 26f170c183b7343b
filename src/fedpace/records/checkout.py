"""`commit` finds the git commit that a run was made with, without running programs that the repository names.

A repository's configuration can name programs that even `git status` starts: a file monitor, filters, drivers. Users
may start fedpace in repositories of others. So the commit is read from git's files, and `git status` is called only if
the configuration names no program.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HARMLESS = re.compile(
    r"\[(core|remote|branch|user|merge|pull|push|rebase|init|color|advice|gc|pack|index|extensions|submodule|lfs)\b",
    re.IGNORECASE,
)
"""Sections of git's configuration that name no program, except by keys that match `PROGRAM`."""
PROGRAM = re.compile(
    r"fsmonitor|hookspath|sshcommand|gitproxy|askpass|editor|pager|attributesfile|worktree|command|driver|helper"
    r"|uploadpack|receivepack|program|textconv|external|smudge|clean|process",
    re.IGNORECASE,
)
HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LARGEST = 2**20
"""Most bytes that are read from one of git's files."""


def commit() -> str | None:
    """Return the commit of the git checkout around the current folder; None outside a checkout.

    A final `+` means uncommitted changes; `?` means that this could not be checked safely.
    """
    try:
        found = _folders(Path.cwd())
        if found is None:
            return None
        own, common = found
        head = _head(own, common)
        return None if head is None else head + _changed(own, common)
    except (OSError, ValueError):
        return None


def _folders(start: Path) -> tuple[Path, Path] | None:
    """Return the git folder of the checkout around `start`, and the git folder that its worktrees share."""
    for place in (start, *start.parents):
        own = place / ".git"
        if own.is_file():
            own = place / _text(own).removeprefix("gitdir:").strip()
        if (own / "HEAD").is_file():
            shared = own / "commondir"
            return own, (own / _text(shared).strip() if shared.is_file() else own)
    return None


def _head(own: Path, common: Path) -> str | None:
    head = _text(own / "HEAD").strip()
    for _ in range(5):
        if HASH.fullmatch(head):
            return head
        name = head.removeprefix("ref:").strip()
        if not re.fullmatch(r"refs/[\w./@+-]+", name) or ".." in name:
            return None
        loose = next((folder / name for folder in (own, common) if (folder / name).is_file()), None)
        head = _text(loose).strip() if loose is not None else _packed(common, name)
    return None


def _packed(common: Path, name: str) -> str:
    packed = common / "packed-refs"
    for line in _text(packed).splitlines() if packed.is_file() else ():
        parts = line.split()
        if len(parts) == 2 and parts[1] == name:
            return parts[0]
    return ""


def _changed(own: Path, common: Path) -> str:
    """Return `+` if there are uncommitted changes, `?` if this cannot be checked safely, else an empty string."""
    for path in (common / "config", own / "config", own / "config.worktree"):
        if path.is_file() and not harmless(_text(path)):
            return "?"
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
    asked = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    try:
        done = subprocess.run(["git", *quiet, *asked], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "?"
    return "+" if done.stdout.strip() else ""


def harmless(configuration: str) -> bool:
    """Return whether a repository's configuration names no program that `git status` would start."""
    lines = [line.strip() for line in configuration.splitlines()]
    sections = [line for line in lines if line.startswith("[")]
    keys = [line.split("=")[0] for line in lines if not line.startswith(("[", "#", ";"))]
    inline = [line.split("]", 1)[1].split("=")[0] for line in sections if "]" in line]
    return all(HARMLESS.match(line) for line in sections) and not any(PROGRAM.search(key) for key in keys + inline)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LARGEST).decode("utf-8", errors="strict")
