"""Decodes parquet rows to arrays with Hugging Face `datasets`, from local files or from the Hub.

Images are PNG or JPEG bytes in the Hub's struct (bytes, path); they become uint8 (channels, height, width). Text
becomes character numbers in LEAF's alphabet.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import FedpaceError, InputError, MissingExtraError
from fedpace._base.files import json_bytes, write_atomically
from fedpace.data.hub import FOLDER_VARIABLE, Origin, Source, looked

BATCH = 2000
PATIENCE = 5.0
"""Seconds to wait for a connection to the Hub."""

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order."""
STAND_INS = {"/": ">", "@": "}"}
"""Replacements for another edition of the plays: it has the two left characters and lacks the two right ones."""


def write_arrays(source: Source, origin: Origin, target: Path) -> None:
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


def _tables(source: Source, origin: Origin, split: str) -> Iterator[Any]:
    """Yield arrow tables of a split; any failure raises an InputError that says where."""
    try:
        import datasets
    except ModuleNotFoundError as cause:
        raise MissingExtraError(f"the data set {source.name!r}", "data", "datasets") from cause
    try:
        # Streamed, so that `datasets` keeps no second copy of the rows.
        if origin.folder is None:
            knock()
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
                f"the data set {source.name!r} was not found: {looked(source)} at {origin.revision[:12]}, which did "
                f"not answer ({reason}). Go online, or set {FOLDER_VARIABLE}, or folder in [data] of an experiment, to "
                "a folder that holds "
                f"{source.name}/{next(iter(source.rows))}*.parquet"
            ) from cause
        names = ", ".join(path.name for path in origin.files[split])
        raise InputError(
            f"{names} in {origin.folder} cannot be read as parquet ({reason}): it may be truncated; fetch it again"
        ) from cause


def knock() -> None:
    """Raise an OSError at once if the Hub cannot be reached; `datasets` would retry for most of a minute.

    Behind a proxy, and in offline mode, nothing is checked.
    """
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if getproxies().get(address.scheme) or getproxies().get("all") or address.hostname is None:
        return
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return  # `datasets` uses its cache only
    port = address.port or (80 if address.scheme == "http" else 443)
    socket.create_connection((address.hostname, port), timeout=PATIENCE).close()


def _check_columns(table: Any, source: Source, origin: Origin, split: str) -> None:
    missing = [column for column in source.columns if column not in table.column_names]
    if missing:
        raise InputError(
            f"{split} of {source.name} from {origin.words} lacks the column {', '.join(missing)}: expected "
            f"{', '.join(source.columns)} as in {source.repository}, but it has {', '.join(table.column_names)}"
        )


def _images(table: Any, source: Source, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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


def _text(table: Any, source: Source, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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
