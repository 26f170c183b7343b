"""Atomic writing and safe reading of JSON and npz files."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError, StorageError

PIECE = 2**24
"""Bytes that are written at a time."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or quota."""
INTACT = ". What was recorded before is intact"
"""Part of the error text between the cause and the advice."""


Chunk = bytes | NDArray[Any]
"""Bytes to write, or an array whose bytes are written."""


def write_atomically(path: Path, content: bytes | Iterable[Chunk]) -> None:
    """Write `content` to `path` atomically: a crash leaves the old file or the new one, never a part.

    A full disk raises StorageError with advice. Other failures raise the system's OSError.
    """
    try:
        _write_atomically(path, content)
    except OSError as cause:
        if cause.errno in FULL:
            raise storage_error(path, cause) from cause
        raise


def _write_atomically(path: Path, content: bytes | Iterable[Chunk]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Do not use tempfile: only the owner can read its files, but reports are shared.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            for chunk in [content] if isinstance(content, bytes) else content:
                file.write(chunk if isinstance(chunk, bytes) else _raw(chunk))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def keeping(path: Path) -> Iterator[None]:
    """Context manager: turn an OSError of a failed write into a StorageError with advice.

    If two are nested, the error names the outer path, such as a checkpoint instead of a file in it.
    """
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error, StorageError) else error
        if not isinstance(cause, OSError):
            raise
        raise storage_error(path, cause) from cause


def storage_error(path: Path, cause: OSError) -> StorageError:
    """Return a StorageError that says what could not be written, why, and what to do."""
    remedy = "make room" if cause.errno in FULL else "put that right"
    return StorageError(f"cannot write {path}: {cause.strerror or cause}{INTACT}: {remedy}, and go on")


def folder_of(path: Any) -> Path:
    """Return `path` as a Path; raise InputError if it is neither text nor a path."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a folder, but a {type(path).__name__} came")
    return Path(path)


def json_bytes(value: Any) -> bytes:
    """Return indented JSON; raise ValueError for NaN and infinity, which other languages cannot read."""
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


LARGEST_JSON = 2**30
"""Largest size in bytes of a JSON file to read."""


def check_file(path: Path, most: int | None = None) -> None:
    """Raise OSError if `path` is not a regular file, for example a pipe, or has more than `most` bytes."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a file")
    if most is not None and found.st_size > most:
        raise OSError(f"it has {found.st_size:,} bytes, and the limit is {most:,}")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise InputError with its path if it is missing, broken or too large."""
    try:
        check_file(path, LARGEST_JSON)
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise InputError(f"expected the file {path}, but it is not there") from cause
    except (OSError, ValueError, RecursionError, MemoryError) as cause:
        raise InputError(f"{path} is not readable JSON: {str(cause) or type(cause).__name__}") from cause


class RowsOfTable(Protocol):
    """A table whose rows are arrays of their own, and are not to be copied together."""

    @property
    def rows(self) -> tuple[NDArray[Any], ...]:
        """The rows, all of one shape and type."""
        ...


Table = NDArray[Any] | RowsOfTable


def rows_of(table: Table) -> tuple[tuple[int, ...], np.dtype[Any], tuple[NDArray[Any], ...]]:
    """Return the shape and type of a table, and the arrays to write one after another."""
    rows = getattr(table, "rows", ())
    if rows:
        return (len(rows), *rows[0].shape), rows[0].dtype, rows
    array = np.asarray(table)
    return array.shape, array.dtype, (array,)


def _raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array; without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def npz_bytes(arrays: Mapping[str, Table]) -> bytes:
    """Return the arrays as the content of an npz file."""
    buffer = io.BytesIO()
    for chunk in npz_chunks(arrays):
        buffer.write(chunk if isinstance(chunk, bytes) else _raw(chunk))
    return buffer.getvalue()


class _Passed(io.RawIOBase):
    """A file that keeps what is written to it until it is taken."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.chunks.append(bytes(content))
        return len(self.chunks[-1])

    def take(self) -> bytes:
        taken, self.chunks = b"".join(self.chunks), []
        return taken


def npz_chunks(arrays: Mapping[str, Table]) -> Iterator[bytes]:
    """Yield the content of an npz file row by row, so that no second copy of the arrays is made."""
    passed = _Passed()
    with zipfile.ZipFile(passed, "w", zipfile.ZIP_STORED) as archive:
        for name, table in arrays.items():
            shape, kind, rows = rows_of(table)
            if kind.hasobject:
                raise ValueError(f"{name} holds Python objects, which cannot be saved")
            described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, described)
                for row in rows:
                    raw = _raw(row)
                    for start in range(0, raw.size, PIECE):
                        entry.write(raw[start : start + PIECE])
                        yield passed.take()
        yield passed.take()
    yield passed.take()


RATIO = 1100
"""Largest possible compression ratio of deflate; an entry that claims more is invalid."""


LARGEST_UNPACKED = 2**29
"""Most bytes that all arrays of a compressed npz may unpack to; uncompressed files may have any size."""


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file, without pickle; raise InputError with its path if it is missing or invalid.

    The claimed sizes are checked before memory is allocated, because a small malicious file may claim gigabytes. Each
    entry is compared with its stored bytes, and the total with `LARGEST_UNPACKED`.
    """
    try:
        check_file(path)
        with path.open("rb") as file:
            _check_entries(path)
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as cause:
        raise InputError(f"expected the file {path}, but it is not there") from cause
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, MemoryError, *BROKEN) as cause:
        raise InputError(f"{path} is not a readable npz file of plain arrays: {cause}") from cause


BROKEN = (zlib.error, struct.error, NotImplementedError, KeyError, RuntimeError, OverflowError, SyntaxError, TypeError)
"""Exceptions that zipfile and NumPy raise for damaged files."""


def _check_entries(path: Path) -> None:
    """Raise ValueError if an entry claims more than its bytes can hold, has a bad type, or the total is too large."""
    stored = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        whole = sum(entry.file_size for entry in archive.infolist())
        if whole > max(stored, LARGEST_UNPACKED):
            raise ValueError(
                f"its {stored:,} bytes unpack to {whole:,}, and the limit of a compressed file is "
                f"{LARGEST_UNPACKED:,}: save it uncompressed, with np.savez, if it is meant to be as large"
            )
        for entry in archive.infolist():
            if entry.compress_size > stored or entry.file_size > RATIO * max(entry.compress_size, 1):
                raise ValueError(f"{entry.filename} claims {entry.file_size:,} bytes in {stored:,}")
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            if dtype.kind not in "biufU" or (not dtype.itemsize and 0 not in shape):
                raise ValueError(f"{entry.filename} holds {dtype.str!r}, which is neither numbers nor text")
            if any(extent < 0 for extent in shape) or math.prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError(f"{entry.filename} claims an array of shape {shape} in {entry.file_size:,} bytes")
