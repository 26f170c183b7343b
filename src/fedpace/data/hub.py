"""`load` reads public data sets from parquet files, in a folder or on the Hugging Face Hub, as memory-mapped arrays.

`SOURCES` lists names, columns and splits. A folder contains NAME/train*.parquet (and NAME/test*.parquet) with the same
columns as on the Hub. Each data set is decoded once and cached.
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
"""Version of the decoded arrays; a new version does not use older caches."""

REVISION_VARIABLE = "FEDPACE_HUB_REVISIONS"
"""Environment variable that sets other revisions than `PINNED`, as NAME=COMMIT,NAME=COMMIT."""
MAIN = "main"
PINNED = {
    "mnist": "77f3279092a1c1579b2250db8eafed0ad422088c",
    "fashion-mnist": "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    "cifar10": "0b2714987fa478483af9968de7c934580d0bb9a2",
    "femnist": "df739a2b09df2b5cc1ec93107659b9a9a8566487",
}
"""Commits on the Hub that are used, so that a push there does not change results here. For other data sets the main
branch is used."""

FOLDER_VARIABLE = "FEDPACE_DATA"
"""Environment variable with a folder of parquet files, which is searched before the Hub."""


@dataclass(frozen=True)
class Source:
    """The location of a data set, and the meaning of its columns."""

    name: str
    """Name of the data set and of its folder."""
    repository: str
    """Repository on the Hub."""
    kind: Literal["images", "text"]
    inputs: str
    labels: str
    shape: tuple[int, ...]
    """Shape of one input: (channels, height, width), or (characters,)."""
    classes: int
    rows: Mapping[str, int]
    """Split -> number of rows of the complete split."""
    owner: str | None = None
    """Column with the owner of each row; None if rows have no owners."""

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
    """One split as read-only memory-mapped arrays."""

    inputs: NDArray[np.uint8]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64] | None
    """Row i belongs to `owner_names[owners[i]]` of the data set; None if rows have no owners."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoded data set."""

    source: Source
    origin: str
    """Where the rows came from, as text."""
    cache: Path
    """Folder of the arrays."""
    splits: Mapping[str, Split]
    owner_names: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """The local files of a data set, or the Hub if there are none."""

    folder: Path | None
    files: Mapping[str, tuple[Path, ...]]
    revision: str = MAIN
    """Revision of the Hub's repository: a commit, a tag or a branch."""

    @property
    def words(self) -> str:
        """The origin as text."""
        return f"the Hugging Face Hub at {self.revision}" if self.folder is None else str(self.folder)

    def digest(self, source: Source) -> str:
        """Return a digest of the files' paths, sizes and times, or of the Hub's repository and revision."""
        stamps = [
            (split, str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
            for split, paths in self.files.items()
            for path in paths
        ]
        pinned = [self.revision] if self.revision != MAIN else []
        named = json.dumps([FORMAT, source.repository, stamps, *pinned])
        return hashlib.sha256(named.encode()).hexdigest()[:16]


def load(name: str, folder: str = "") -> Decoded:
    """Return the data set `name`; decode it if it is not in the cache.

    `folder` = "" searches $FEDPACE_DATA, then the Hub. Otherwise only `folder` is searched.
    """
    source = SOURCES[name]
    origin = locate(source, folder)

    def decode(target: Path) -> None:
        from fedpace.data import _decode  # imported here, because importing `datasets` is slow

        _decode.write_arrays(source, origin, target)

    entry = _cache.entry(f"{name}-{origin.digest(source)}", decode)
    meta = read_json(entry / "meta.json")
    splits = {split: _open_split(entry, split, source) for split in source.rows}
    return Decoded(source, origin.words, entry, splits, tuple(meta["owners"]))


def locate(source: Source, folder: str = "") -> Origin:
    """Return the origin of a data set: local files, or the Hub if no folder has it; the Hub is not contacted."""
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
    """Return data set -> revision from the environment variable."""
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
    """Return a text that lists the searched places, for error messages."""
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
    """Return the parquet files of every split; None if there are no files."""
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
