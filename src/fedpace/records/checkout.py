"""Which commit a run was made with, learnt without letting the checkout run anything.

A repository's own configuration can name programs that git starts for a mere `git status`: a monitor of files, filters,
drivers. fedpace is started in folders that others have made, so the commit is read from the files, and git is only
asked whether anything was changed where that configuration names no such thing.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HARMLESS = re.compile(
    r"\[(core|remote|branch|user|merge|pull|push|rebase|init|color|advice|gc|pack|index|extensions|submodule|lfs)\b",
    re.IGNORECASE,
)
"""Sections of a configuration that name no program, with the keys below left out."""
PROGRAM = re.compile(
    r"fsmonitor|hookspath|sshcommand|gitproxy|askpass|editor|pager|attributesfile|worktree|command|driver|helper"
    r"|uploadpack|receivepack|program|textconv|external|smudge|clean|process",
    re.IGNORECASE,
)
HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LARGEST = 2**20
"""Bytes of a file of git's that is read."""


def commit() -> str | None:
    """Return the commit of the checkout in the current folder, or None outside of one.

    `+` behind it = with uncommitted changes; `?` = whether there are any could not be asked without risk.
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
    """Return git's folder of the checkout around `start`, and the one that its worktrees share."""
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
    """Return `+` where something was changed since the commit, `?` where git cannot be asked."""
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
    """Whether a repository's configuration names nothing that git would start for `git status`."""
    lines = [line.strip() for line in configuration.splitlines()]
    sections = [line for line in lines if line.startswith("[")]
    keys = [line.split("=")[0] for line in lines if not line.startswith(("[", "#", ";"))]
    inline = [line.split("]", 1)[1].split("=")[0] for line in sections if "]" in line]
    return all(HARMLESS.match(line) for line in sections) and not any(PROGRAM.search(key) for key in keys + inline)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LARGEST).decode("utf-8", errors="strict")
