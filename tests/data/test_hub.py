"""Finding data sets, decoding them once, and refusing what is broken without leaving anything behind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from fedpace._base.errors import InputError
from fedpace.data import hub


def cached(tmp_path):
    """What is in the cache, locks aside."""
    place = tmp_path / "cache"
    return sorted(path.name for path in place.iterdir() if path.suffix != ".lock") if place.exists() else []


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_images_come_back_pixel_for_pixel(name, folder, parquet):
    source = hub.SOURCES[name]
    written = {}
    for split, count in (("train", 25), ("test", 12)):
        table, pixels, labels = parquet.image_table(source, count, count)
        parquet.write(folder, name, table, split)
        written[split] = pixels.reshape(count, *source.shape[1:], source.shape[0]).transpose(0, 3, 1, 2), labels
    decoded = hub.load(name, str(folder))
    for split, (pixels, labels) in written.items():
        np.testing.assert_array_equal(decoded.splits[split].inputs, pixels)
        np.testing.assert_array_equal(decoded.splits[split].labels, labels)
        assert decoded.splits[split].owners is None
    assert decoded.owner_names == ()
    assert decoded.origin == str(folder / name)


def test_writers_are_numbered_in_the_order_they_come(folder, parquet):
    parquet.generate(folder, "femnist", train=20)
    decoded = hub.load("femnist", str(folder))
    assert decoded.owner_names == tuple(f"writer-{i}" for i in range(6))
    assert decoded.splits["train"].owners.tolist() == [row % 6 for row in range(20)]
    assert list(decoded.splits) == ["train"]


def test_text_is_read_in_leafs_alphabet(folder, parquet):
    table = parquet.text_table(30)
    parquet.write(folder, "shakespeare", table)
    rows = hub.load("shakespeare", str(folder)).splits["train"]
    assert len(hub.ALPHABET) == 80
    for row in (0, 29):
        assert "".join(hub.ALPHABET[number] for number in rows.inputs[row]) == table["x"][row].as_py()
        assert hub.ALPHABET[rows.labels[row]] == table["y"][row].as_py()


def test_characters_of_another_edition_have_stand_ins(folder, parquet):
    parquet.write(folder, "shakespeare", pa.table({"character_id": ["a"], "x": ["@" * 79 + "a"], "y": ["/"]}))
    rows = hub.load("shakespeare", str(folder)).splits["train"]
    assert hub.ALPHABET[rows.inputs[0, 0]] == "}"
    assert hub.ALPHABET[rows.labels[0]] == ">"


def test_several_files_a_split_are_read_in_order(folder, parquet):
    table, pixels, _ = parquet.image_table(hub.SOURCES["mnist"], 30, 0)
    parquet.write(folder, "mnist", table.slice(0, 10), "train-00000-of-00002")
    parquet.write(folder, "mnist", table.slice(10), "train-00001-of-00002")
    parquet.write(folder, "mnist", table, "test")
    np.testing.assert_array_equal(hub.load("mnist", str(folder)).splits["train"].inputs[:, 0], pixels)


def test_the_arrays_are_mapped_and_read_only(folder, parquet):
    parquet.generate(folder, "mnist")
    rows = hub.load("mnist", str(folder)).splits["train"]
    assert isinstance(rows.inputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        rows.inputs[0] = 0


def test_the_second_time_nothing_is_decoded(folder, parquet, monkeypatch):
    parquet.generate(folder, "mnist")
    first = hub.load("mnist", str(folder))
    monkeypatch.setattr(hub, "write_arrays", None)
    second = hub.load("mnist", str(folder))
    assert second.cache == first.cache
    np.testing.assert_array_equal(first.splits["test"].inputs, second.splits["test"].inputs)


def test_changed_files_are_decoded_anew(folder, parquet):
    parquet.generate(folder, "mnist", train=20)
    assert len(hub.load("mnist", str(folder)).splits["train"]) == 20
    parquet.generate(folder, "mnist", train=30)
    assert len(hub.load("mnist", str(folder)).splits["train"]) == 30


def test_where_is_looked_first(tmp_path, parquet, monkeypatch):
    source = hub.SOURCES["mnist"]
    assert hub.locate(source).folder is None, "the Hub, when no folder has it"
    parquet.generate(tmp_path / "work" / "shared" / "data", "mnist", train=11)
    assert hub.locate(source).folder is None, "no folder is guessed"
    parquet.generate(tmp_path / "variable", "mnist", train=12)
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path / "variable"))
    assert hub.locate(source).folder == tmp_path / "variable" / "mnist"
    parquet.generate(tmp_path / "given", "mnist", train=13)
    assert hub.locate(source, str(tmp_path / "given")).folder == tmp_path / "given" / "mnist"
    shutil.rmtree(tmp_path / "variable")
    assert hub.locate(source).folder is None, "a variable that leads nowhere does not hide the Hub"


def test_a_given_folder_is_the_only_one_looked_into(tmp_path, parquet):
    parquet.generate(tmp_path / "work" / "shared" / "data", "mnist")
    with pytest.raises(InputError, match=r"'mnist' is not in .*empty: expected .*train\*.parquet.*ylecun/mnist"):
        hub.load("mnist", str(tmp_path / "empty"))


def test_nothing_found_says_where_was_looked(tmp_path, monkeypatch):
    import datasets

    def unreachable(repository, **_):
        raise ConnectionError(f"Couldn't reach {repository}")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setenv("FEDPACE_DATA", "elsewhere")
    with pytest.raises(InputError) as caught:
        hub.load("cifar10")
    for words in ("FEDPACE_DATA = elsewhere", "uoft-cs/cifar10", "Couldn't reach", "Go online"):
        assert words in str(caught.value)
    assert cached(tmp_path) == []


def test_the_hub_is_asked_once(tmp_path, parquet, monkeypatch):
    """By its own name and split, in the same way as files; a second load needs no connection."""
    import datasets

    plain = datasets.load_dataset
    asked = []
    parquet.generate(tmp_path / "far", "mnist", train=14)

    def load_dataset(repository, *, split, **options):
        asked.append((repository, split))
        files = {split: str(tmp_path / "far" / "mnist" / f"{split}.parquet")}
        return plain("parquet", data_files=files, split=split, **options)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    decoded = hub.load("mnist")
    assert asked == [("ylecun/mnist", "train"), ("ylecun/mnist", "test")]
    assert decoded.origin == f"the Hugging Face Hub at {hub.PINNED['mnist']}"
    assert len(decoded.splits["train"]) == 14
    hub.load("mnist")
    assert len(asked) == 2


def test_without_a_network_it_says_so_at_once(monkeypatch):
    """`datasets` would try for most of a minute."""
    import datasets

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        for variable in ("HF_HUB_OFFLINE", "FEDPACE_DATA", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the Hub was asked"))
        with pytest.raises(InputError, match=r"Go online, or set FEDPACE_DATA, or folder in \[data\]"):
            hub.load("mnist")


def broken_tables(parquet):
    """Everything that can be wrong with a table, and the words that must come."""
    source = hub.SOURCES["mnist"]
    good, _, labels = parquet.image_table(source, 5, 0)
    small = np.zeros((9, 9), np.uint8)
    colour = np.zeros((28, 28, 3), np.uint8)

    def with_image(content):
        rows = [{"bytes": content, "path": None}] * 5
        return good.set_column(0, "image", pa.array(rows, type=good.schema.field("image").type))

    return [
        (
            good.rename_columns(["img", "label"]),
            "lacks the column image: expected image, label .*it has img, label",
        ),
        (good.drop_columns(["label"]), "lacks the column label"),
        (good.set_column(1, "label", pa.array(labels + 8)), "expected labels from 0 to 9, but 8 to 12 came"),
        (good.set_column(1, "label", pa.array(list("abcde"))), "expected image as image bytes and label as integers"),
        (good.set_column(0, "image", pa.array(range(5))), "expected image as image bytes"),
        (good.slice(0, 0), "has no rows"),
        (with_image(b"no picture"), "image number 0 cannot be decoded"),
        (with_image(parquet.png(small)), "expected images of 28x28 pixels in mode L, but number 0 is 9x9 in mode L"),
        (with_image(parquet.png(colour)), "but number 0 is 28x28 in mode RGB"),
    ]


@pytest.mark.parametrize("case", range(9))
def test_broken_tables(case, tmp_path, folder, parquet):
    table, words = broken_tables(parquet)[case]
    parquet.generate(folder, "mnist", train=5)
    parquet.write(folder, "mnist", table, "test")
    with pytest.raises(InputError, match=words):
        hub.load("mnist", str(folder))
    assert cached(tmp_path) == [], "train was fine, and yet nothing is left of it"


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ("short", "a", "expected x of 80 characters, but number 0 is 'short'"),
        ("a" * 80, "ab", "expected y of 1 characters, but number 0 is 'ab'"),
        ("é" * 80, "a", "x has the character 'é', which is not among LEAF's 80"),
        ("a" * 80, "~", "y has the character '~'"),
        ("a" * 80, None, "expected y of 1 characters, but number 0 is None"),
    ],
)
def test_broken_text(x, y, words, tmp_path, folder, parquet):
    parquet.write(folder, "shakespeare", pa.table({"character_id": ["a"], "x": [x], "y": pa.array([y], pa.string())}))
    with pytest.raises(InputError, match=words):
        hub.load("shakespeare", str(folder))
    assert cached(tmp_path) == []


@pytest.mark.parametrize("keep", [0, 4, 1000])
def test_a_truncated_file(keep, tmp_path, folder, parquet):
    parquet.generate(folder, "mnist")
    file = folder / "mnist" / "test.parquet"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"test.parquet in .*mnist cannot be read as parquet .*truncated"):
        hub.load("mnist", str(folder))
    assert cached(tmp_path) == []


def test_a_split_is_missing(folder, parquet):
    parquet.generate(folder, "mnist")
    (folder / "mnist" / "test.parquet").unlink()
    with pytest.raises(InputError, match=r"has no test\*.parquet: the data set 'mnist' needs it"):
        hub.load("mnist", str(folder))


def test_a_damaged_cache_is_named(folder, parquet):
    parquet.generate(folder, "mnist")
    entry = hub.load("mnist", str(folder)).cache
    file = entry / "train-inputs.npy"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(InputError, match=r"train-inputs.npy is damaged .*remove the folder"):
        hub.load("mnist", str(folder))
    shutil.rmtree(entry)
    assert len(hub.load("mnist", str(folder)).splits["train"]) == 120


def test_what_a_killed_process_left_is_swept_away(folder, parquet):
    parquet.generate(folder, "mnist")
    entry = hub.load("mnist", str(folder)).cache
    part = entry.with_name(entry.name + ".part")
    entry.rename(part)
    (part / "rubbish").write_text("")
    again = hub.load("mnist", str(folder)).cache
    assert again == entry
    assert not part.exists()
    assert not (entry / "rubbish").exists()


def test_a_cache_that_cannot_be_made(tmp_path, folder, parquet, monkeypatch):
    parquet.generate(folder, "mnist")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written .*set FEDPACE_CACHE"):
        hub.load("mnist", str(folder))


def test_the_cache_is_where_caches_are(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDPACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub.cache_folder() == tmp_path / "fedpace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache_folder() == tmp_path / ".cache" / "fedpace"


def _enter(root, barrier, log):
    os.environ["FEDPACE_CACHE"] = str(root)

    def make(target):
        with log.open("a") as file:
            file.write("made\n")
        (target / "content").write_text("x" * 1000)

    barrier.wait()
    entry = hub.cache_entry("key", make)
    assert (entry / "content").read_text() == "x" * 1000


def test_processes_share_the_cache_without_a_race(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, log = context.Barrier(3), tmp_path / "log"
    workers = [context.Process(target=_enter, args=(tmp_path / "shared", barrier, log)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert log.read_text() == "made\n", "one made it, the others waited"


def test_opening_the_cache_loads_nothing_heavy(folder, parquet):
    """What makes it quick: neither `datasets` nor pyarrow nor torch is imported for arrays that are there."""
    parquet.generate(folder, "mnist")
    hub.load("mnist", str(folder))
    look = (
        "import sys; from fedpace.data.mnist import Mnist; Mnist(clients=3, folder=sys.argv[1]).build(seed=0); "
        "sys.exit(str({'datasets', 'pyarrow', 'torch', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", look, str(folder)], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("name", hub.SOURCES)
def test_the_first_rows_of_the_real_files(name, real):
    source = hub.SOURCES[name]
    origin = hub.locate(source, real(name))
    decode = hub._images if source.kind == "images" else hub._text
    for split in source.rows:
        table = next(hub._tables(source, origin, split))
        inputs, labels = decode(table, source, "the first rows")
        assert inputs.shape[1:] == source.shape
        assert 0 <= labels.min() <= labels.max() < source.classes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "owners"),
    [
        ("mnist", {"train": 60_000, "test": 10_000}, 0),
        ("fashion-mnist", {"train": 60_000, "test": 10_000}, 0),
        ("femnist", {"train": 45_958}, 300),
        ("shakespeare", {"train": 1_687_317}, 921),
        ("cifar10", {"train": 50_000, "test": 10_000}, 0),
    ],
)
def test_the_real_files(name, rows, owners, real):
    decoded = hub.load(name, real(name))
    assert {split: len(part) for split, part in decoded.splits.items()} == rows
    assert len(decoded.owner_names) == owners
    assert len(np.unique(decoded.splits["train"].labels)) >= decoded.source.classes - 3


def test_a_pinned_revision_is_asked_for_and_cached_apart(monkeypatch):
    monkeypatch.delenv(hub.FOLDER_VARIABLE, raising=False)
    source = hub.SOURCES["mnist"]
    usual = hub.locate(source)
    assert len(usual.revision) == 40, "a commit, which nobody can move"
    monkeypatch.setenv(hub.REVISION_VARIABLE, "mnist=abc123, cifar10=v1")
    pinned = hub.locate(source)
    assert (usual.revision, pinned.revision) == (hub.PINNED["mnist"], "abc123")
    assert usual.digest(source) != pinned.digest(source)
    assert "abc123" in pinned.words
    asked = {}
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **options: asked.update(options) or iter(()))
    with pytest.raises(InputError):
        next(hub._tables(source, pinned, "train"))
    assert asked["revision"] == "abc123"


@pytest.mark.parametrize("value", ["mnist", "nosuch=1", "mnist=../..", "mnist=a b"])
def test_a_pin_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv(hub.REVISION_VARIABLE, value)
    with pytest.raises(InputError, match="NAME=REVISION"):
        hub.revisions()
