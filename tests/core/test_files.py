"""Files are wholly there or not at all, and nothing is ever unpickled."""

from __future__ import annotations

import math
import os
import zipfile

import numpy as np
import pytest

from fedpace._base import files
from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, npz_bytes, read_json, read_npz, write_atomically


def test_folders_are_made_and_files_replaced(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_others_may_read_what_they_could_read_of_any_new_file(tmp_path):
    """A report in a shared folder is for sharing; a temporary file's private mode must not stick to it."""
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_atomically(tmp_path / "atomic", b"")
    assert (tmp_path / "atomic").stat().st_mode == plain.stat().st_mode


def test_json_is_readable_and_refuses_what_others_cannot_read():
    assert json_bytes({"ä": [1, 2]}).decode() == '{\n  "ä": [\n    1,\n    2\n  ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes(math.nan)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_broken_json(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json is not readable JSON"):
        read_json(path)


def test_missing_files(tmp_path):
    with pytest.raises(InputError, match=r"expected the file .*gone\.json, but it is not there"):
        read_json(tmp_path / "gone.json")
    with pytest.raises(InputError, match=r"expected the file .*gone\.npz, but it is not there"):
        read_npz(tmp_path / "gone.npz")


def test_arrays_round_trip(tmp_path):
    arrays = {"a": np.arange(3), "moments/b": np.array([[1.5, math.nan]]), "c": np.array([True])}
    (tmp_path / "x.npz").write_bytes(npz_bytes(arrays))
    back = read_npz(tmp_path / "x.npz")
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype


def test_equal_arrays_are_equal_bytes():
    assert npz_bytes({"a": np.arange(3)}) == npz_bytes({"a": np.arange(3)})


def test_pickles_are_neither_written_nor_read(tmp_path):
    objects = np.array([{"a": 1}], dtype=object)
    with pytest.raises(ValueError, match="Python objects"):
        npz_bytes({"a": objects})
    np.savez(tmp_path / "x.npz", a=objects)
    with pytest.raises(InputError, match=r"x\.npz is not a readable npz file of plain arrays"):
        read_npz(tmp_path / "x.npz")


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(3))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "npy"])
def test_broken_npz(tmp_path, damage):
    path = tmp_path / "x.npz"
    whole = npz_bytes({"a": np.arange(100.0)})
    flipped = bytearray(whole)
    flipped[300] ^= 0xFF
    content = {"empty": b"", "text": b"not a zip", "cut": whole[:200], "flipped": bytes(flipped)}.get(damage)
    if content is None:
        single_array(path)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz is not a readable npz file"):
        read_npz(path)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    """A run folder of somebody else may hold a pipe: reading it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_npz):
        with pytest.raises(InputError, match="it is not a file"):
            read(tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["|V0", "|S0", "|O", "[('a', '<f8')]", "|V8"])
def test_arrays_of_other_things_than_numbers_are_refused(tmp_path, kind):
    """Items of no bytes: ten billion of them fit into an empty file."""
    described = kind if kind.startswith("[") else repr(kind)
    header = f"{{'descr': {described}, 'fortran_order': False, 'shape': (1,), }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(InputError, match="not a readable npz"):
        read_npz(tmp_path / "a.npz")


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(200_000), b=np.zeros(200_000))
    (tmp_path / "stored.npz").write_bytes(npz_bytes({"a": np.zeros(400_000)}))
    monkeypatch.setattr(files, "LARGEST_UNPACKED", 3_000_000)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(InputError, match=r"unpack to 3,200,\d+, and the limit of a compressed file is 3,000,000: save"):
        read_npz(tmp_path / "bomb.npz")
    monkeypatch.undo()
    monkeypatch.setattr(files, "LARGEST_UNPACKED", 3_000_000)
    assert read_npz(tmp_path / "stored.npz")["a"].size == 400_000, "what is as large on disk is what it says"
