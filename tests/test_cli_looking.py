"""What was recorded, looked at: runs, explain, watch, export, report."""

from __future__ import annotations

import csv
import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.config import load_experiment
from fedpace.records.run import Round, RunInfo, find_runs, read_run, round_line
from fedpace.records.writer import RunWriter
from fedpace.report.comparison import summarise
from fedpace.report.explain import explain_client
from fedpace.report.export import crc32c, event_file, member_rows, round_rows
from fedpace.report.figures import cohort_map
from fedpace.report.tables import latex, scheme_table
from fedpace.runner import run_all


def call(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "tiny"
    path = tmp_path_factory.mktemp("toml") / "tiny.toml"
    path.write_text(
        'name = "tiny"\nseeds = 2\n[data]\nname = "quadratic"\nclients = 5\nsamples = 6\ntest_samples = 5\n'
        'dimension = 3\n[model]\nname = "linear"\n[delays]\nname = "lognormal"\n[training]\nepochs = 1\nbatch = 0\n'
        'lr = 0.05\n[stop]\nmax_rounds = 3\ntarget = 0.001\n[[selectors]]\nname = "random"\nk = 2\n'
        '[[selectors]]\nname = "pace"\n'
    )
    run_all(load_experiment(path), place)
    return place


# -- explain -----------------------------------------------------------------------------------------------


def test_explain_counts_what_the_rounds_say(folder):
    for record in find_runs(folder):
        for client in range(5):
            found = explain_client(record, str(client))
            played = record.rounds[1:]
            mine = [current for current in played if client in current.clients]
            assert found.rounds == 3
            assert found.chosen == len(mine)
            assert found.delay == record.info.expected_delays[client]
            assert found.rank == 1 + sorted(record.info.expected_delays).index(found.delay)
            weights = [
                current.weights[current.clients.index(client)] / sum(current.weights)
                for current in mine
                if client not in current.failed
            ]
            assert found.influence == pytest.approx(sum(weights) / 3)
            assert [turn.round for turn in found.turns] == [1, 2, 3]


def round_of(number, clients, **options):
    return Round(number, clock=10.0 * number, seconds=10.0, overhead=0.0, metric=None, loss=None, clients=clients,
                 weights=tuple(1 / len(clients) for _ in clients), **options)  # fmt: skip


def test_explain_says_why(folder):
    info = replace(read_run(folder / "pace" / "seed-0").info, expected_delays=(1.0, 5.0, 9.0))
    record = replace(
        read_run(folder / "pace" / "seed-0"),
        info=info,
        rounds=(
            round_of(1, (0, 1)),
            round_of(2, (0,), facts={"reasons": {"1": "out: takes 5 s", "2": "out: takes 9 s"}}),
            round_of(3, (1, 2), failed=(2,)),
            round_of(4, (0, 2), facts={"reasons": {"1": "out: takes 7 s"}}),
        ),
    )
    turns = explain_client(record, "1").turns
    assert [turn.part for turn in turns] == ["chosen", "not chosen", "chosen", "not chosen"]
    assert turns[1].reason == "out: takes 5 s", "what the scheme said, where it was recorded"
    assert explain_client(record, "1").reasons == (
        ("chosen: the scheme recorded no reason", 2),
        ("not chosen, such as in 2: out: takes 5 s", 2),  # numbers apart, one reason
    )
    slow = explain_client(record, "2")
    assert "takes 9.00 s, and the slowest that was chosen 5.00 s" in slow.turns[0].reason
    assert (slow.chosen, slow.failed) == (2, 1)
    assert slow.sentences()[-1] == "In 1 round it crashed, came too late or was refused."
    refused = replace(
        record, rounds=(round_of(1, (1, 2), failed=(2,), facts={"failures": {"2": "its update is long"}}),)
    )
    assert explain_client(refused, "2").turns[0].reason.startswith("its update is long; "), "why, where it is known"
    rounds = (
        round_of(1, (0, 2), failed=(2,), facts={"excluded": ["2"]}),
        round_of(2, (0, 1)),
        round_of(3, (0, 1), facts={"excluded": []}),
        round_of(4, (0, 1)),
    )
    for scheme in ("pace", "random", "pace-async"):
        held = explain_client(replace(record, info=replace(info, selector=scheme), rounds=rounds), "2").turns
        assert [turn.reason.startswith("excluded for a while: ") for turn in held] == [False, True, True, False]
    measured = replace(record, rounds=(round_of(1, (0, 1), warmed=(2,)), *record.rounds[1:]))
    said = explain_client(measured, "2").sentences()[-1]
    assert said == "Before 1 round it sent measurements only, and did not train."
    fast = explain_client(record, "0")
    assert "fast enough" in fast.turns[2].reason
    with pytest.raises(InputError, match=r"no client '9'.*It has the clients 0 to 2"):
        explain_client(record, "9")


def test_clients_of_a_table_are_explained_by_name(folder):
    """Whoever has clinics asks for a clinic: a number in the order of the alphabet tells nobody anything."""
    known = read_run(folder / "pace" / "seed-0")
    info = replace(known.info, expected_delays=(1.0, 5.0, 9.0), names=("clinic 1", "clinic 10", "2"))
    record = replace(known, info=info, rounds=(round_of(1, (1,)), round_of(2, (0, 1))))
    found = explain_client(record, "clinic 10")
    assert (found.client, found.rank, found.chosen) == ("clinic 10", 2, 2)
    assert explain_client(record, "1").client == "clinic 10 (number 1)"
    assert explain_client(record, "1").turns == found.turns
    assert explain_client(record, "2").rank == 3, "a name comes before a number"
    with pytest.raises(InputError, match=r"Did you mean 'clinic 10'. It has clinic 1, clinic 10, 2"):
        explain_client(record, "clinic_10")
    assert [row["client"] for row in member_rows([record])] == ["clinic 10", "clinic 1", "clinic 10"]
    assert cohort_map(record).rows[0] == "client clinic 1, 1.00 s"


def test_explain_says_of_random_that_it_is_chance(folder):
    """Who is left out by chance was not too slow, and "fast enough, but others were chosen" would suggest a reason."""
    known = read_run(folder / "random" / "seed-0")
    rounds = (round_of(1, (0, 1)), round_of(2, (1, 2), failed=(1,)))
    found = explain_client(
        replace(known, info=replace(known.info, expected_delays=(1.0, 5.0, 9.0)), rounds=rounds), "1"
    )
    assert [turn.reason for turn in found.turns] == [
        "drawn by chance, 2 of 3",
        "crashed or late; drawn by chance, 2 of 3",
    ]
    assert "1.3 of 2 rounds are expected for each client" in " ".join(found.sentences())
    assert "fast enough" not in call("explain", folder, "--client", 2, "--selector", "random")


def test_explain_without_rounds_speaks_of_replies(folder):
    """Nobody is chosen there, a client may reply twice before a step, and what is said adds up to all steps."""
    known = read_run(folder / "pace" / "seed-0")
    rounds = (
        round_of(1, (0, 1, 0), facts={"reasons": {"0": "at work"}}),
        replace(round_of(2, (0, 2)), weights=(0.0, 1.0)),
        round_of(3, (1, 2)),
        round_of(4, (0, 2), failed=(0,)),
    )
    record = replace(known, info=replace(known.info, selector="pace-async"), rounds=rounds)
    found = explain_client(record, "0")
    assert [turn.part for turn in found.turns] == ["replied", "replied", "no reply", "failed"]
    assert [turn.weight for turn in found.turns] == pytest.approx([2 / 3, 0.0, None, 0.5])
    assert found.influence == pytest.approx((2 / 3) / 4)
    assert (found.chosen, found.failed, found.in_rounds) == (3, 1, False)
    assert "older model: it has no weight in this step, but changes the memory" in found.turns[1].reason
    plain = replace(record, info=replace(record.info, server={"name": "nesterov"}))
    assert explain_client(plain, "0").turns[1].reason == "to an older model: it has no weight in this step"
    said = " ".join(found.sentences())
    assert "had a reply in 3 of 4 steps" in said
    assert "chosen" not in said.replace("clients are not chosen", "")
    for client in "012":
        assert sum(count for _, count in explain_client(record, client).reasons) == 4


def test_explain_knows_the_clients_of_a_server(tmp_path):
    info = RunInfo("flower", "pace", {}, 0, "accuracy", "up", None, {})
    with RunWriter(tmp_path / "state", info) as writer:
        writer.add(Round(0, 0.0, 0.0, 0.0, None, None))
        writer.add(round_of(1, ("phone-1", "phone-2"), facts={"reasons": {"phone-3": "out: too slow"}}))
        writer.finish("interrupted")
    shown = call("explain", tmp_path / "state", "--client", "phone-3")
    assert "its delay is not known" in shown
    assert "out: too slow" in shown
    watched = json.loads(call("watch", tmp_path / "state", "--json"))["runs"]
    assert [(run["label"], run["round"], run["clients"]) for run in watched] == [("flower", 1, ["phone-1", "phone-2"])]


HOSTILE = "\x1b]0;owned\x07\n=1+1"
"""A name that sets a terminal's title and forges a line."""


def hostile_run(tmp_path):
    info = RunInfo("random", "random", {}, 0, "accuracy", "up", None, {})
    with RunWriter(tmp_path / "run", info) as writer:
        writer.add(Round(0, clock=0.0, seconds=0.0, overhead=0.0, metric=None, loss=None))
        said = {"reasons": {HOSTILE: f"in: {HOSTILE}"}, "failures": {"=2+2": HOSTILE}}
        writer.add(round_of(1, (HOSTILE, "=2+2"), failed=("=2+2",), facts=said))
        writer.finish("finished")
    return tmp_path / "run"


def test_names_of_clients_do_not_reach_the_terminal_as_they_are(tmp_path):
    folder = hostile_run(tmp_path)
    for client in (HOSTILE, "=2+2"):
        printed = call("explain", folder, "--client", client)
        assert "\x1b" not in printed
        assert "\x07" not in printed
        assert r"\x1b]0;owned" in printed
    with pytest.raises(InputError, match=r"It has \\x1b\]0;owned\\x07\\x0a=1\+1"):
        explain_client(read_run(folder), "nobody")


def test_names_are_no_formulas_in_a_table(tmp_path):
    call("export", hostile_run(tmp_path), "--to", "csv", "--out", tmp_path / "out")
    with (tmp_path / "out" / "cohorts.csv").open(newline="") as file:
        clients = [row["client"] for row in csv.DictReader(file)]
    assert clients == [r"\x1b]0;owned\x07\x0a=1+1", "'=2+2"]


def test_explain_prints_rounds_of_one_run_and_sums_of_many(folder):
    many = call("explain", folder, "--client", 2)
    assert many.count("client 2 was chosen in") == 4
    assert "name one run" in many
    one = call("explain", folder, "--client", 2, "--selector", "pace", "--seed", 1)
    assert one.count("client 2 was chosen in") == 1
    assert "Round" in one
    with pytest.raises(InputError, match="its schemes are random, pace, its seeds 0, 1"):
        call("explain", folder, "--client", 2, "--seed", 7)
    found = json.loads(call("explain", folder, "--client", 2, "--json"))
    assert len(found["runs"]) == 4


# -- runs, watch -------------------------------------------------------------------------------------------


def test_runs_lists_what_there_is(folder):
    (found,) = json.loads(call("runs", folder.parent, "--json"))["comparisons"]
    assert found["schemes"] == ["random", "pace"]
    assert (found["planned"], found["ended"], found["state"]) == (4, 4, "finished")
    assert "tiny" in call("runs", folder.parent)
    with pytest.raises(InputError, match="no folder"):
        call("runs", folder / "nowhere")


@pytest.mark.parametrize("width", [60, 80])
def test_what_is_shown_fits_into_the_window(folder, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (["runs", folder.parent], ["watch", folder, "--once"], ["report", folder]):
        shown = CliRunner().invoke(app, list(map(str, command)), env={"COLUMNS": str(width)}).stdout
        lines = [line.rstrip() for line in shown.splitlines() if str(folder) not in line]
        assert max(map(len, lines)) <= width
        assert "…" not in shown
        assert {"random", "pace"} <= {word.strip(",:/") for line in lines for word in line.replace("/", " ").split()}
    narrow = CliRunner().invoke(app, ["report", str(folder)], env={"COLUMNS": "44"}).stdout
    assert "Left out in this narrow window: " in " ".join(narrow.split())
    assert "Time to" in narrow


def test_runs_says_how_to_go_on(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "two runs")
    shutil.rmtree(next((tmp_path / "two runs").glob("*/seed-1")))
    shown = " ".join(call("runs", tmp_path).split())
    assert "3 of 4 runs with 2 seeds, interrupted" in shown
    assert "to resume: fedpace resume '" in shown


def test_one_damaged_run_does_not_hide_the_others(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "whole")
    shutil.copytree(folder, tmp_path / "broken")
    next((tmp_path / "broken").glob("*/seed-1/run.json")).write_text("{", encoding="utf-8")
    found = {Path(each["folder"]).name: each for each in json.loads(call("runs", tmp_path, "--json"))["comparisons"]}
    assert found["whole"]["state"] == "finished"
    assert found["broken"]["state"].startswith("damaged: ")
    shown = " ".join(call("runs", tmp_path).split())
    assert "damaged: " in shown
    assert "4 of 4 runs" in shown


def test_watch_sees_runs_grow(folder, tmp_path):
    from fedpace.records.catalogue import RunWatch

    whole = read_run(folder / "pace" / "seed-0")
    watching = RunWatch(tmp_path)
    assert watching.look() == []
    with RunWriter(tmp_path / "run", replace(whole.info, status="running")) as writer:
        writer.add(whole.rounds[0])
        writer.add(whole.rounds[1])
        (sight,) = watching.look()
        assert (sight.last.number, sight.info.status, sight.metric) == (1, "running", whole.rounds[1].metric)
        path = tmp_path / "run" / "rounds.jsonl"
        before = path.read_bytes()
        path.write_bytes(before + round_line(whole.rounds[2]).encode()[:40])  # half of a line is none
        assert watching.look()[0].last.number == 1
        path.write_bytes(before + round_line(whole.rounds[2]).encode() + b"\n")
        assert watching.look()[0].last.number == 2
        path.write_bytes(b"")  # begun anew
        assert watching.look()[0].last is None
        path.write_bytes(before)
        writer.finish("reached")
    assert "reached" in call("watch", tmp_path), "it ends with the runs"
    with pytest.raises(InputError, match="no folder"):
        call("watch", tmp_path / "nowhere")


def test_watch_counts_a_client_once_however_often_it_replied(folder, tmp_path):
    whole = read_run(folder / "pace" / "seed-0")
    with RunWriter(tmp_path / "run", whole.info) as writer:
        writer.add(whole.rounds[0])
        writer.add(round_of(1, (0, 1, 1, 1, 2, 2)))
        writer.finish("reached")
    assert call("watch", tmp_path).split()[-1] == "3"


# -- export ------------------------------------------------------------------------------------------------


def test_csv_and_parquet_hold_every_round_and_every_member(folder, tmp_path):
    from pyarrow import parquet

    call("export", folder, "--to", "csv", "--out", tmp_path)
    call("export", folder, "--to", "parquet", "--out", tmp_path)
    runs = find_runs(folder)
    with (tmp_path / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(run.rounds) for run in runs)
    for row, expected in zip(rows, round_rows(runs), strict=True):
        assert float(row["clock"]) == expected["clock"]
        assert row["scheme"] == expected["scheme"]
    members = parquet.read_table(tmp_path / "cohorts.parquet").to_pylist()
    assert len(members) == sum(len(current.clients) for run in runs for current in run.rounds)
    first = runs[0].rounds[1]
    assert [(row["client"], row["weight"]) for row in members[: len(first.clients)]] == [
        (str(client), weight) for client, weight in zip(first.clients, first.weights, strict=True)
    ]


def test_latex_is_escaped(folder):
    runs = [replace(run, info=replace(run.info, label=run.info.label + "_50%")) for run in find_runs(folder)]
    text = latex(scheme_table(summarise(runs)))
    assert r"random\_50\%" in text
    assert sum(line.endswith(r"\\") for line in text.splitlines()) == 3
    assert text.isascii()


def test_crc_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


def test_event_files_are_read_by_protobuf(folder, tmp_path):
    call("export", folder, "--to", "tensorboard", "--out", tmp_path)
    (path,) = (tmp_path / "pace" / "seed-0").iterdir()
    events = [event_type().FromString(message) for message in records(path.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    rounds = read_run(folder / "pace" / "seed-0").rounds
    found = {(e.step, e.summary.value[0].tag): (e.wall_time, e.summary.value[0].simple_value) for e in events[1:]}
    for current in rounds:
        clock, value = found[current.number, "test/loss"]
        assert clock == current.clock
        assert value == pytest.approx(current.loss, rel=1e-6)


def test_long_tags_and_steps():
    (_, message) = records(event_file([("t" * 300, 10**6, 1.5, 2.5)]))
    event = event_type().FromString(message)
    assert (event.step, event.wall_time, event.summary.value[0].tag) == (10**6, 1.5, "t" * 300)


def records(content):
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        (crc,) = struct.unpack("<I", content[12 + length : 16 + length])
        message = content[12 : 12 + length]
        rotated = (crc - 0xA282EAD8) & 0xFFFFFFFF
        assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc32c(message)
        found.append(message)
        content = content[16 + length :]
    return found


def event_type():
    """TensorBoard's messages as their .proto files have them, for an independent reader."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")
    for name, fields in {
        "Value": [("tag", 1, kinds.TYPE_STRING, ""), ("simple_value", 2, kinds.TYPE_FLOAT, "")],
        "Summary": [("value", 1, kinds.TYPE_MESSAGE, ".t.Value")],
        "Event": [
            ("wall_time", 1, kinds.TYPE_DOUBLE, ""),
            ("step", 2, kinds.TYPE_INT64, ""),
            ("file_version", 3, kinds.TYPE_STRING, ""),
            ("summary", 5, kinds.TYPE_MESSAGE, ".t.Summary"),
        ],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            label = kinds.LABEL_REPEATED if field == "value" else kinds.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def test_report_of_a_folder_of_comparisons_reports_each(folder, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(folder, tmp_path / name)
    shown = call("report", tmp_path)
    assert shown.count("comparison.json") == 2
    assert str(tmp_path / "one") in shown
    found = json.loads(call("report", tmp_path, "--json"))["comparisons"]
    assert [Path(each["folder"]).name for each in found] == ["one", "two"]


def test_explain_says_how_clients_are_remembered_and_when_one_was_forgotten(tmp_path):
    room = 5 * 374 / 2**30  # 5 of 12 clients of 650 parameters in 4 bits
    options = ["--selectors", f"pace-async(memory_gib={room})", "--seeds", "1", "--rounds", "8", "--device", "cpu"]
    experiment = tmp_path / "small.toml"
    experiment.write_text(
        'name = "small"\nselectors = [{name = "pace-async"}]\ndata = {name = "digits", clients = 12}\n'
        'model = {name = "softmax"}\ndelays = {name = "lognormal"}\n'
    )
    done = CliRunner().invoke(app, ["compare", str(experiment), *options, "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    said = CliRunner().invoke(app, ["explain", str(tmp_path / "runs"), "--client", "1"]).output
    assert "in 4 bits per value" in " ".join(said.split())
    assert "forgot what it remembered of it" in " ".join(said.split())
    wrong = CliRunner().invoke(app, ["compare", str(experiment), "--device", "cuda:99", "--out", str(tmp_path / "no")])
    assert wrong.exit_code != 0
