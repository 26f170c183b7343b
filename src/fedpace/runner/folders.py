"""Checks and clears folders of runs; it removes only files that fedpace wrote."""

from __future__ import annotations

import re
from pathlib import Path

from fedpace._base.errors import InputError, StorageError
from fedpace.records.catalogue import PLAN
from fedpace.records.run import INFO, ROUNDS, TRACKING
from fedpace.sim.checkpoint import STATE, TENSORS, is_checkpoint

MODEL = "model.safetensors"

OURS = frozenset({INFO, ROUNDS, TRACKING, MODEL, PLAN})
"""Names of the files that fedpace writes into a folder of runs; `overwrite` removes only these and reports."""
ASKED = r"(?:-(?:target|hold|at|looks)-.+)?"
REPORTS = re.compile(rf"report{ASKED}\.(?:html|png)|comparison{ASKED}\.json")
"""Names of reports; those of `fedpace report --target 0.9` and the like end in what was asked for."""
IN_CHECKPOINTS = re.compile(rf"{re.escape(STATE)}|{re.escape(TENSORS)}|session\.json|arrays-[0-9a-f]{{16}}\.npz")
"""Names of the files that fedpace writes into the folder of a checkpoint."""
UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}")
"""Temporary name of a file; such a file remains if the process is killed while writing."""


def check_folder(folder: Path, *, overwrite: bool, how: str = "--overwrite") -> None:
    """Raise if new runs cannot be written into a folder; change nothing."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder to write into")
    if _our_files(folder) and not overwrite:
        raise InputError(f"{folder} holds runs already: give another folder, or overwrite them ({how})")


def clear_folder(folder: Path) -> None:
    """Remove the runs in `folder`; raise, and remove nothing, if it contains other files."""
    try:
        for path in _our_files(folder):
            path.unlink()
        for path in sorted(folder.rglob("*"), reverse=True):  # inner folders first
            path.rmdir()
    except OSError as cause:
        raise StorageError(
            f"the runs in {folder} cannot be removed: {cause}. Give another folder, or make it writable"
        ) from cause


def take_back_plan(folder: Path, created: list[Path]) -> None:
    """Remove the plan and the `created` folders (inner first) if no run was started."""
    if list(folder.rglob("*")) == [folder / PLAN]:
        (folder / PLAN).unlink()
        for each in created:
            each.rmdir()


def sweep(folder: Path) -> None:
    """Remove temporary files that a killed process left in a run's folder."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name) and path.is_file() and _is_ours(path):
            path.unlink(missing_ok=True)


def _our_files(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    foreign = [path for path in files if path.is_symlink() or not _is_ours(path)]
    if foreign:
        raise InputError(f"{folder} holds files that are not fedpace's, such as {foreign[0]}: give another folder")
    return files


def _is_ours(path: Path) -> bool:
    unfinished = UNFINISHED.fullmatch(path.name)
    name = unfinished.group(1) if unfinished else path.name
    if name in OURS or REPORTS.fullmatch(name) is not None:
        return True
    return is_checkpoint(path.parent) and IN_CHECKPOINTS.fullmatch(name) is not None
