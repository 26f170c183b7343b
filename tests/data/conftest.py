"""Generated parquet files with the Hub's columns stand in for the big ones."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedpace.data import hub

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
REAL = Path(os.environ.get("FEDPACE_DATA") or Path(__file__).parents[3] / "shared" / "data")
"""Folder of the real data sets, where there is one."""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A cache of its own, no data folder but the test's, and a Hub that is never asked over the network."""
    monkeypatch.setenv("FEDPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDPACE_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "work" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "here")


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image_table(source, count, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    channels, height, width = source.shape
    pixels = rng.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    if channels == 1:
        pixels = pixels[..., 0]
    labels = (np.arange(count) % source.classes).astype(np.int64)
    columns = {
        source.inputs: pa.array([{"bytes": png(image), "path": None} for image in pixels], type=STRUCT),
        source.labels: pa.array(labels),
    }
    if source.owner:
        columns[source.owner] = pa.array([f"writer-{row % 6}" for row in range(count)])
    return pa.table(columns), pixels, labels


def text_table(count):
    """Windows over a running text, a third each for three roles."""
    text = "Now is the winter of our discontent made glorious summer; " * 20
    rows = range(count)
    return pa.table(
        {
            "character_id": [f"richard_iii/ROLE {3 * row // count}" for row in rows],
            "x": [text[row : row + 80] for row in rows],
            "y": [text[row + 80] for row in rows],
        }
    )


def write(folder, name, table, split="train"):
    place = Path(folder) / name
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, place / f"{split}.parquet")
    return place / f"{split}.parquet"


def generate(folder, name, train=120, test=60):
    """Write the stand-in of a data set below `folder`."""
    source = hub.SOURCES[name]
    if source.kind == "text":
        write(folder, name, text_table(900))
        return
    for number, (split, count) in enumerate((("train", train), ("test", test))):
        if split in source.rows:
            write(folder, name, image_table(source, count, number)[0], split)


@pytest.fixture
def parquet():
    """The functions that write stand-ins."""

    class Parquet:
        generate = staticmethod(generate)
        image_table = staticmethod(image_table)
        text_table = staticmethod(text_table)
        write = staticmethod(write)
        png = staticmethod(png)

    return Parquet


@pytest.fixture
def folder(tmp_path):
    """An empty data folder."""
    place = tmp_path / "data"
    place.mkdir()
    return place


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Of the tests that read the real files, so that each is decoded once."""
    return tmp_path_factory.mktemp("real")


@pytest.fixture
def real(monkeypatch, shared_cache):
    """Returns the folder of a real data set, or skips and says so."""

    def find(name):
        if not (REAL / name).is_dir():
            pytest.skip(f"the real {name} is not in {REAL} (FEDPACE_DATA names it): only its stand-in was tested")
        monkeypatch.setenv("FEDPACE_CACHE", str(shared_cache))
        return str(REAL)

    return find
