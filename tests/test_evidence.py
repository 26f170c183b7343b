"""Recorded results say what made them, and documents say where their figures are out of date."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_path import benchmark

ROOT = Path(__file__).parents[1]

evidence, records = benchmark("evidence"), benchmark("lib.records")

RECORDS, STAMPS = records.declared(), records.stamps()


def test_every_record_is_stamped_and_every_document_says_what_made_its_figures():
    assert evidence.problems(RECORDS, STAMPS) == []
    for name, stamp in STAMPS.items():
        assert stamp.release, name
        assert len(stamp.commit) >= 7, name
        assert stamp.date.startswith("20"), name
    assert set(RECORDS) == set(STAMPS)


def test_a_document_that_does_not_say_that_its_figures_are_old_is_found():
    """As if a source had changed since the demo was run: README must then say so."""
    source, golden = "src/fedpace/selectors/pace_async.py", "tests/golden/rounds/pace-async.json"
    current = records.stamped(RECORDS["demo"], release="1", commit="abcdef0")
    assert RECORDS["demo"].changed(replace(current, code={**current.code, source: "other"})) == [], "golden runs say so"
    changed = replace(current, code={**current.code, source: "other"}, golden={**current.golden, golden: "other"})
    assert RECORDS["demo"].changed(changed) == [source]
    (problem,) = evidence.problems(RECORDS, {**STAMPS, "demo": changed})
    assert problem.startswith("README.md is not what the records say")
    note = RECORDS["demo"].note(changed)
    assert "before `pace_async.py` changed" in note
    assert "make evidence ONLY=demo" in note


def test_a_record_that_was_edited_or_has_no_stamp_is_found():
    edited = replace(STAMPS["front"], sha256="0" * 64)
    (problem,) = evidence.problems(RECORDS, {**STAMPS, "front": edited})
    assert problem.startswith("benchmarks/front.json is not the file that was stamped")
    (problem,) = evidence.problems(RECORDS, {name: stamp for name, stamp in STAMPS.items() if name != "front"})
    assert problem.startswith("benchmarks/front.json has no stamp")
    undeclared = {name: record for name, record in RECORDS.items() if name != "front"}
    assert "benchmarks/front.json is not declared in benchmarks/evidence.toml" in evidence.problems(undeclared, STAMPS)


def test_comments_and_docstrings_do_not_make_figures_old():
    code = 'LIMIT = 3\n"""What it is."""\n\n\ndef twice(x):\n    """Return 2 x."""\n    return 2 * x\n'
    said = code.replace("What it is.", "Otherwise\nsaid.").replace("Return 2 x.", "Say so.\n\n    More.\n    ")
    said = f"# new\n{said}\n\n# new\n"
    assert records.code_digest(code) == records.code_digest(said)
    assert records.code_digest(code) != records.code_digest(code.replace("2 * x", "3 * x"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Records of a folder of its own."""
    for module in (evidence, records):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "rule.py").write_text("FACTOR = 2\n")
    (tmp_path / "make.py").write_text(
        "import pathlib, sys\nfolder = pathlib.Path(sys.argv[1])\nfolder.mkdir(exist_ok=True)\n"
        "print('part of it')\nseen = folder / 'seen'\nif not seen.exists():\n    seen.touch()\n    sys.exit(3)\n"
    )
    return records.Record("one", "one.json", ("python make.py runs/evidence/one",), (records.Group(("rule.py",)),), ())


def test_a_command_that_fails_leaves_the_record_as_it_was_and_goes_on_later(place, tmp_path):
    (tmp_path / "one.json").write_text("old")
    with pytest.raises(SystemExit, match="exit status 3"):
        evidence.measure(place)
    assert (tmp_path / "one.json").read_text() == "old"
    evidence.measure(place)  # the same folder, so that it finds what the first call left
    assert (tmp_path / "one.json").read_text() == "part of it\n"
    stamp = records.stamped(place, release="9", commit="abcdef0")
    assert place.changed(stamp) == []
    (tmp_path / "rule.py").write_text("FACTOR = 3\n")
    assert place.changed(stamp) == ["rule.py"]
    with pytest.raises(SystemExit, match="exit status 3"):  # other code, other folder: it begins anew
        evidence.measure(place)


def test_the_headline_of_readme_is_what_the_demo_gave():
    schemes = {each["label"]: each for each in json.loads((ROOT / "benchmarks" / "demo.json").read_text())["schemes"]}
    ours, fedbuff = schemes["pace-async"], schemes["fedbuff"]["time_to_target"]["mean"]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"**{ours['speed_up']['mean']:.0f} times as fast as with random selection" in text
    assert f"{fedbuff / ours['time_to_target']['mean']:.1f} times as fast as with FedBuff**" in text


def test_a_command_that_reads_its_own_record_prints_the_new_one():
    """`time_to_target.py --recorded FILE` takes over rows of the record, and its output is the new record."""
    file = "benchmarks/grid/images_mlp.json"
    assert not evidence.writes_itself(["python", "a.py", "--recorded", file, "--afresh", "pace"], file)
    assert evidence.writes_itself(["python", "a.py", "--json", file], file)
    assert evidence.writes_itself(["python", "a.py", file], file)
    for record in RECORDS.values():
        if record.commands and not record.writes:
            assert not (
                "--afresh" in record.commands[-1] and evidence.writes_itself(record.commands[-1].split(), record.file)
            )
