"""Public data sets as parquet files, from a folder or the Hugging Face Hub, decoded once into memory-mapped arrays.

`SOURCES` is the one table of names, columns and splits. A folder holds NAME/train*.parquet (and NAME/test*.parquet)
with the Hub's columns, so that one code path reads both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.files import read_json
from fedpace.data import _cache

FORMAT = 1
"""Of the decoded arrays; a new number leaves older caches alone."""

REVISION_VARIABLE = "FEDPACE_HUB_REVISIONS"
"""Takes data sets on the Hub at other revisions than `PINNED`, as NAME=COMMIT,NAME=COMMIT."""
MAIN = "main"
PINNED = {
    "mnist": "77f3279092a1c1579b2250db8eafed0ad422088c",
    "fashion-mnist": "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    "cifar10": "0b2714987fa478483af9968de7c934580d0bb9a2",
    "femnist": "df739a2b09df2b5cc1ec93107659b9a9a8566487",
}
"""Commits on the Hub that are taken: whoever can push there must not change what runs here. Others are taken as their
main branch is."""

FOLDER_VARIABLE = "FEDPACE_DATA"
"""Names the folder of parquet files that is looked into before the Hub is asked."""


@dataclass(frozen=True)
class Source:
    """Where a data set is and what its columns mean."""

    name: str
    """Also the folder's."""
    repository: str
    """On the Hub."""
    kind: Literal["images", "text"]
    inputs: str
    labels: str
    shape: tuple[int, ...]
    """Of one input: (channels, height, width), or (characters,)."""
    classes: int
    rows: Mapping[str, int]
    """Splits, and the rows of each when it is complete."""
    owner: str | None = None
    """The column that says whose a row is."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(column for column in (self.inputs, self.labels, self.owner) if column is not None)


_GREY, _FULL = (1, 28, 28), {"train": 60_000, "test": 10_000}
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("mnist", "ylecun/mnist", "images", "image", "label", _GREY, 10, _FULL),
        Source("fashion-mnist", "zalando-datasets/fashion_mnist", "images", "image", "label", _GREY, 10, _FULL),
        Source(
            "cifar10", "uoft-cs/cifar10", "images", "img", "label", (3, 32, 32), 10, {"train": 50_000, "test": 10_000}
        ),
        Source(
            "femnist", "flwrlabs/femnist", "images", "image", "character", _GREY, 62, {"train": 814_277}, "writer_id"
        ),
        Source(
            "shakespeare", "flwrlabs/shakespeare", "text", "x", "y", (80,), 80, {"train": 4_226_158}, "character_id"
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Split:
    """One split, memory-mapped and read-only."""

    inputs: NDArray[np.uint8]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64] | None
    """Row i belongs to `owner_names[owners[i]]` of the data set; None when rows are nobody's."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A data set as arrays."""

    source: Source
    origin: str
    """Where the rows came from, for people to read."""
    cache: Path
    """The folder of the arrays."""
    splits: Mapping[str, Split]
    owner_names: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """The files of a data set, or the Hub when there are none."""

    folder: Path | None
    files: Mapping[str, tuple[Path, ...]]
    revision: str = MAIN
    """Of the Hub's repository: a commit, a tag or a branch."""

    @property
    def words(self) -> str:
        """For people to read."""
        return f"the Hugging Face Hub at {self.revision}" if self.folder is None else str(self.folder)

    def digest(self, source: Source) -> str:
        """Name the content cheaply: the files' places, sizes and times, or the Hub's name."""
        stamps = [
            (split, str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
            for split, paths in self.files.items()
            for path in paths
        ]
        pinned = [self.revision] if self.revision != MAIN else []
        named = json.dumps([FORMAT, source.repository, stamps, *pinned])
        return hashlib.sha256(named.encode()).hexdigest()[:16]


def load(name: str, folder: str = "") -> Decoded:
    """Return the data set `name`, decoding it if no process has done so before.

    `folder` = "" looks into $FEDPACE_DATA, then asks the Hub; a folder that is given is the only place looked into.
    """
    source = SOURCES[name]
    origin = locate(source, folder)

    def decode(target: Path) -> None:
        from fedpace.data import _decode  # it needs `datasets`, which takes longer to import than a cached set to open

        _decode.write_arrays(source, origin, target)

    entry = _cache.entry(f"{name}-{origin.digest(source)}", decode)
    meta = read_json(entry / "meta.json")
    splits = {split: _open_split(entry, split, source) for split in source.rows}
    return Decoded(source, origin.words, entry, splits, tuple(meta["owners"]))


def locate(source: Source, folder: str = "") -> Origin:
    """Return where the data set is; when no folder has it, the Hub, which may or may not answer."""
    for place in _places(folder):
        found = _files_in(place / source.name, source)
        if found is not None:
            return Origin(place / source.name, found)
    if folder:
        raise InputError(
            f"the data set {source.name!r} is not in {folder}: expected "
            f"{Path(folder) / source.name / (next(iter(source.rows)) + '*.parquet')} with the columns of the Hub's "
            f"{source.repository} ({', '.join(source.columns)})"
        )
    return Origin(None, {}, (PINNED | revisions()).get(source.name, MAIN))


def revisions() -> dict[str, str]:
    """Return the revisions that the user asks for, by data set."""
    found: dict[str, str] = {}
    for entry in filter(None, os.environ.get(REVISION_VARIABLE, "").split(",")):
        name, _, revision = (word.strip() for word in entry.partition("="))
        if name not in SOURCES or not re.fullmatch(r"[\w./-]{1,100}", revision) or ".." in revision:
            raise InputError(
                f"{REVISION_VARIABLE} must be NAME=REVISION, separated by commas, with names of {', '.join(SOURCES)}; "
                f"but {entry!r} came"
            )
        found[name] = revision
    return found


def looked(source: Source) -> str:
    """Say where a search without a folder of its own looked."""
    variable = os.environ.get(FOLDER_VARIABLE)
    first = f"{FOLDER_VARIABLE} = {variable}" if variable else f"{FOLDER_VARIABLE} (not set)"
    return f"looked into {first}, and for {source.repository} on the Hugging Face Hub"


def _places(folder: str) -> Iterator[Path]:
    if folder:
        yield Path(folder).expanduser()
        return
    if variable := os.environ.get(FOLDER_VARIABLE):
        yield Path(variable).expanduser()


def _files_in(place: Path, source: Source) -> dict[str, tuple[Path, ...]] | None:
    """Return the parquet files of every split; None when there are none at all."""
    found = {split: tuple(sorted(place.glob(f"{split}*.parquet"))) for split in source.rows}
    if not any(found.values()):
        return None
    for split, files in found.items():
        if not files:
            raise InputError(
                f"{place} has no {split}*.parquet: the data set {source.name!r} needs it beside the others"
            )
    return found


def _open_split(entry: Path, split: str, source: Source) -> Split:
    arrays: dict[str, Any] = {}
    for part in ("inputs", "labels", "owners") if source.owner else ("inputs", "labels"):
        path = entry / f"{split}-{part}.npy"
        try:
            arrays[part] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as cause:
            raise InputError(f"the cached array {path} is damaged ({cause}): remove the folder {entry}") from cause
    return Split(arrays["inputs"], arrays["labels"], arrays.get("owners"))
