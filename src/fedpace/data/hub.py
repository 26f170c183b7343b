"""`load` reads public data sets from parquet files, in a folder or on the Hugging Face Hub, as memory-mapped arrays.

`SOURCES` lists names, columns and splits. A folder contains NAME/train*.parquet (and NAME/test*.parquet) with the same
columns as on the Hub. Each data set is decoded once, with Hugging Face `datasets`, and cached. The cache is shared by
processes; an entry is either complete or absent.

Images are PNG or JPEG bytes in the Hub's struct (bytes, path); they become uint8 (channels, height, width). Text
becomes character numbers in LEAF's alphabet.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import FedpaceError, InputError, MissingExtraError
from fedpace._base.files import json_bytes, read_json, write_atomically

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

CACHE_VARIABLE = "FEDPACE_CACHE"
"""Environment variable with the folder of decoded arrays, which processes share."""
FOLDER_VARIABLE = "FEDPACE_DATA"
"""Environment variable with a folder of parquet files, which is searched before the Hub."""
BATCH = 2000
"""Rows that are decoded at once."""
CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection to the Hub."""
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order."""
STAND_INS = {"/": ">", "@": "}"}
"""Replacements for another edition of the plays: it has the two left characters and lacks the two right ones."""


@dataclass(frozen=True)
class HubSource:
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
SOURCES: dict[str, HubSource] = {
    source.name: source
    for source in (
        HubSource("mnist", "ylecun/mnist", "images", "image", "label", _GREY, 10, _FULL),
        HubSource("fashion-mnist", "zalando-datasets/fashion_mnist", "images", "image", "label", _GREY, 10, _FULL),
        HubSource(
            "cifar10", "uoft-cs/cifar10", "images", "img", "label", (3, 32, 32), 10, {"train": 50_000, "test": 10_000}
        ),
        HubSource(
            "femnist", "flwrlabs/femnist", "images", "image", "character", _GREY, 62, {"train": 814_277}, "writer_id"
        ),
        HubSource(
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

    source: HubSource
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

    def digest(self, source: HubSource) -> str:
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

    entry = cache_entry(f"{name}-{origin.digest(source)}", lambda target: write_arrays(source, origin, target))
    meta = read_json(entry / "meta.json")
    splits = {split: _open_split(entry, split, source) for split in source.rows}
    return Decoded(source, origin.words, entry, splits, tuple(meta["owners"]))


def locate(source: HubSource, folder: str = "") -> Origin:
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


def searched_places(source: HubSource) -> str:
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


def _files_in(place: Path, source: HubSource) -> dict[str, tuple[Path, ...]] | None:
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


def _open_split(entry: Path, split: str, source: HubSource) -> Split:
    arrays: dict[str, Any] = {}
    for part in ("inputs", "labels", "owners") if source.owner else ("inputs", "labels"):
        path = entry / f"{split}-{part}.npy"
        try:
            arrays[part] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as cause:
            raise InputError(f"the cached array {path} is damaged ({cause}): remove the folder {entry}") from cause
    return Split(arrays["inputs"], arrays["labels"], arrays.get("owners"))


def cache_folder() -> Path:
    """Return the cache folder: $FEDPACE_CACHE, or `fedpace` in the user's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedpace"


def cache_entry(key: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder `key`; if it does not exist, `make` fills it.

    Other processes wait meanwhile. If `make` fails or is killed, no entry is left behind.
    """
    place = cache_folder()
    done = place / key
    # An entry is created by one rename, so an existing entry needs no lock.
    if done.is_dir():
        return done
    try:
        from filelock import FileLock
    except ModuleNotFoundError as cause:
        raise MissingExtraError("the cache of decoded data", "data", "filelock") from cause
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / f"{key}.lock")
        lock.acquire()
    except OSError as cause:
        raise InputError(
            f"the cache folder {place} cannot be written ({cause}): set {CACHE_VARIABLE} to one that can"
        ) from cause
    try:
        if not done.is_dir():
            part = place / f"{key}.part"
            shutil.rmtree(part, ignore_errors=True)  # left by a killed process: this process holds the lock
            part.mkdir()
            try:
                make(part)
                part.replace(done)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    finally:
        lock.release()
    return done


def write_arrays(source: HubSource, origin: Origin, target: Path) -> None:
    """Decode every split into npy files below `target`."""
    owner_numbers: dict[str, int] = {}
    for split in source.rows:
        parts: dict[str, list[NDArray[Any]]] = {"inputs": [], "labels": []}
        if source.owner:
            parts["owners"] = []
        row = 0
        for table in _tables(source, origin, split):
            where = f"{split} of {source.name} from {origin.words}, row {row} and on"
            decode = _images if source.kind == "images" else _text
            inputs, labels = decode(table, source, where)
            if labels.size and not 0 <= labels.min() <= labels.max() < source.classes:
                came = f"{labels.min()} to {labels.max()}"
                raise InputError(f"{where}: expected labels from 0 to {source.classes - 1}, but {came} came")
            parts["inputs"].append(inputs)
            parts["labels"].append(labels)
            if source.owner:
                names = table.column(source.owner).to_pylist()
                owners = [owner_numbers.setdefault(str(name), len(owner_numbers)) for name in names]
                parts["owners"].append(np.array(owners, dtype=np.int64))
            row += len(labels)
        if row == 0:
            raise InputError(f"{split} of {source.name} from {origin.words} has no rows")
        for part, pieces in parts.items():
            np.save(target / f"{split}-{part}.npy", np.concatenate(pieces), allow_pickle=False)
    write_atomically(target / "meta.json", json_bytes({"origin": origin.words, "owners": list(owner_numbers)}))


def _tables(source: HubSource, origin: Origin, split: str) -> Iterator[Any]:
    """Yield arrow tables of a split; any failure raises an InputError that says where."""
    try:
        import datasets
    except ModuleNotFoundError as cause:
        raise MissingExtraError(f"the data set {source.name!r}", "data", "datasets") from cause
    try:
        # Streamed, so that `datasets` keeps no second copy of the rows.
        if origin.folder is None:
            check_reachable()
            rows = datasets.load_dataset(source.repository, split=split, streaming=True, revision=origin.revision)
        else:
            files = {split: [str(path) for path in origin.files[split]]}
            rows = datasets.load_dataset("parquet", data_files=files, split=split, streaming=True, batch_size=BATCH)
        first = True
        for table in rows.with_format("arrow").iter(batch_size=BATCH):
            if first:
                _check_columns(table, source, origin, split)
                first = False
            yield table
    except FedpaceError:
        raise
    except Exception as cause:  # pyarrow, fsspec, httpx and datasets raise different errors
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        if origin.folder is None:
            raise InputError(
                f"the data set {source.name!r} was not found: {searched_places(source)} at {origin.revision[:12]}, "
                f"which did not answer ({reason}). Go online, or set {FOLDER_VARIABLE}, or folder in [data] of an "
                f"experiment, to a folder that holds {source.name}/{next(iter(source.rows))}*.parquet"
            ) from cause
        names = ", ".join(path.name for path in origin.files[split])
        raise InputError(
            f"{names} in {origin.folder} cannot be read as parquet ({reason}): it may be truncated; fetch it again"
        ) from cause


def check_reachable() -> None:
    """Raise an OSError at once if the Hub cannot be reached; `datasets` would retry for most of a minute.

    Behind a proxy, and in offline mode, nothing is checked.
    """
    from urllib.request import getproxies  # imported here, because it is slow to import

    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if getproxies().get(address.scheme) or getproxies().get("all") or address.hostname is None:
        return
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return  # `datasets` uses its cache only
    port = address.port or (80 if address.scheme == "http" else 443)
    socket.create_connection((address.hostname, port), timeout=CONNECT_SECONDS).close()


def _check_columns(table: Any, source: HubSource, origin: Origin, split: str) -> None:
    missing = [column for column in source.columns if column not in table.column_names]
    if missing:
        raise InputError(
            f"{split} of {source.name} from {origin.words} lacks the column {', '.join(missing)}: expected "
            f"{', '.join(source.columns)} as in {source.repository}, but it has {', '.join(table.column_names)}"
        )


def _images(table: Any, source: HubSource, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from PIL import Image

    channels, height, width = source.shape
    mode = "L" if channels == 1 else "RGB"
    column = table.column(source.inputs).combine_chunks()
    try:
        encoded = column.field("bytes").to_pylist()
        labels = table.column(source.labels).to_numpy().astype(np.int64, casting="safe")
    except (AttributeError, KeyError, TypeError) as cause:
        raise InputError(
            f"{where}: expected {source.inputs} as image bytes and {source.labels} as integers, but {column.type} and "
            f"{table.column(source.labels).type} came"
        ) from cause
    pixels = np.empty((len(encoded), height, width, channels), dtype=np.uint8)
    for position, content in enumerate(encoded):
        try:
            image = Image.open(io.BytesIO(content))
            image.load()
        except (OSError, TypeError, SyntaxError) as cause:
            raise InputError(f"{where}: image number {position} cannot be decoded ({cause})") from cause
        if image.size != (width, height) or image.mode != mode:
            raise InputError(
                f"{where}: expected images of {width}x{height} pixels in mode {mode}, but number {position} is "
                f"{image.size[0]}x{image.size[1]} in mode {image.mode}"
            )
        pixels[position] = np.frombuffer(image.tobytes(), dtype=np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), labels


def _text(table: Any, source: HubSource, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    windows = _characters(table, source.inputs, source.shape[0], where)
    following = _characters(table, source.labels, 1, where)
    return windows, following[:, 0].astype(np.int64)


def _characters(table: Any, column: str, length: int, where: str) -> NDArray[np.uint8]:
    texts = table.column(column).to_pylist()
    for position, text in enumerate(texts):
        if not isinstance(text, str) or len(text) != length:
            raise InputError(f"{where}: expected {column} of {length} characters, but number {position} is {text!r}")
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
    numbers = np.full(128, len(ALPHABET), dtype=np.uint8)
    numbers[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    for character, stand_in in STAND_INS.items():
        numbers[ord(character)] = ALPHABET.index(stand_in)
    known = numbers[np.minimum(codes, 127)]
    if (strange := (known >= len(ALPHABET)) | (codes > 127)).any():
        raise InputError(
            f"{where}: {column} has the character {chr(codes[np.argmax(strange)])!r}, which is not among LEAF's 80"
        )
    return known.reshape(len(texts), length)
