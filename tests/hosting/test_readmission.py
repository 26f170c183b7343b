"""Excluded clients are asked again: by a call, and by a request that a server finds in its folder."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpace import Coordinator, Outcome, Session, Settings, make_selector
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.hosting.live_server import Host, Server
from fedpace.hosting.replies import Note, Raw
from fedpace.hosting.state_folder import PATTERN, request_readmission
from fedpace.records.influence import Influence
from fedpace.records.run import read_run
from fedpace.trust.limits import MAX_REFUSALS

NAMES = [f"phone-{number}" for number in range(6)]
LIAR = "phone-5"
LOG = logging.getLogger("tests.readmission")


class Transport:
    """Trains at once: everybody goes towards 1, and the liar away from it while it lies."""

    def __init__(self, server):
        self.server, self.waiting, self.lies = server, [], True

    def send(self, tasks):
        self.waiting += tasks

    def collect(self):
        came, self.waiting = self.waiting, []
        for task in came:
            yield task.id, lambda task=task: self.reply(task)

    def wait(self, seconds):
        raise AssertionError("everybody has answered")

    def reply(self, task):
        turned = -1.0 if task.client == LIAR and self.lies else 1.0
        sent = self.server.loop.models[task.step]["w"]
        return Raw({"seconds": 1.0}, samples=10, model={"w": sent + turned * 0.1 * (1 - sent)})


def a_server(folder, **options):
    trained = {"validation": lambda model: {"w": model["w"] + 0.1 * (1 - model["w"])}}
    server = Server(
        make_selector("random", k=6),
        Settings(warmup="lazy"),
        Host("test", LOG, {}),
        clock="reported",
        folder=folder,
        robust="zeno",
        **(trained | options),
    )
    server.membership.update({name: Note(name=name) for name in NAMES})
    server.share(server.saved.model if server.saved else {"w": np.zeros(4)})
    return server, Transport(server)


def steps(server, transport, count):
    """Make steps; return who was in each."""
    made = []
    for _ in range(count):
        step = server.next_step(transport, NAMES)
        moved = server.apply(step)
        made.append(sorted(server.stepped(step, server.shared.arrays, moved=moved).clients))
        server.share(server.shared.arrays)
    return made


@pytest.fixture
def excluding(tmp_path, caplog):
    """A server that has just excluded the liar."""
    caplog.set_level(logging.INFO, LOG.name)
    server, transport = a_server(tmp_path / "state")
    made = steps(server, transport, MAX_REFUSALS + 1)
    assert made[-1] == NAMES[:5]
    assert server.coordinator.excluded == {LIAR}
    yield server, transport, tmp_path / "state"
    server.files.close()


def requests(folder):
    return list(folder.glob(PATTERN))


def readmit(*arguments):
    done = CliRunner().invoke(app, ["readmit", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_the_log_says_how_to_take_it_back(excluding, caplog):
    said = [record.getMessage() for record in caplog.get_records("setup")]
    assert any(f"`fedpace readmit {excluding[2]} {LIAR}` takes that back" in line for line in said)


@pytest.mark.parametrize("named", [[LIAR], []])
def test_a_running_server_acts_at_its_next_step(excluding, caplog, named):
    server, transport, folder = excluding
    said = readmit(folder, *named)
    assert f"readmit {LIAR if named else 'all excluded clients'}." in said
    assert "A running server acts at its next step" in said
    assert f"Excluded after round {MAX_REFUSALS}: {LIAR}." in said, "the last round is written along with the next"
    assert len(requests(folder)) == 1
    transport.lies = False
    assert steps(server, transport, 1) == [NAMES]
    assert not server.coordinator.excluded
    assert not requests(folder), "carried out, saved and removed"
    assert f"{LIAR!r} is readmitted" in caplog.text or f"are readmitted, as requested: {LIAR!r}" in caplog.text
    steps(server, transport, MAX_REFUSALS + 1)
    assert not server.coordinator.excluded
    server.files.close()
    assert read_run(folder).rounds[MAX_REFUSALS + 2].facts["excluded"] == []


def test_a_client_that_lies_on_is_excluded_again(excluding):
    server, transport, folder = excluding
    readmit(folder, LIAR)
    made = steps(server, transport, MAX_REFUSALS + 1)
    assert [LIAR in clients for clients in made] == [True] * MAX_REFUSALS + [False]
    server.files.close()
    found = Influence(read_run(folder).rounds)
    assert (list(found.excluded), found.clients[LIAR].exclusions) == ([LIAR], 2)


def test_a_stopped_server_acts_when_it_starts(excluding, caplog):
    server, _, folder = excluding
    server.files.close("interrupted")
    readmit(folder, LIAR)
    again, transport = a_server(folder)
    assert not again.coordinator.excluded
    assert len(requests(folder)) == 1, "until the state that it changed is saved"
    again.files.close()
    killed, transport = a_server(folder)
    assert not killed.coordinator.excluded, "a server that saved nothing has lost nothing"
    assert LIAR in steps(killed, transport, 1)[0]
    assert not requests(folder)
    assert caplog.text.count(f"{LIAR!r} is readmitted") == 2
    killed.files.close()


def test_unknown_clients_are_reported_in_the_log(excluding, caplog):
    server, transport, folder = excluding
    said = readmit(folder, "phone-50", "phone-1")
    assert "Not excluded then: phone-50, phone-1." in said
    steps(server, transport, 1)
    assert "'phone-50' was to be readmitted, but there is no such client. Did you mean 'phone-5'" in caplog.text
    assert "'phone-1' was to be readmitted, but it was not excluded" in caplog.text
    assert server.coordinator.excluded == {LIAR}
    assert not requests(folder)


def test_several_requests_are_all_carried_out(excluding):
    server, transport, folder = excluding
    for named in (["phone-1"], [LIAR]):
        request_readmission(folder, named)
    assert len(requests(folder)) == 2
    assert LIAR in steps(server, transport, 1)[0]
    assert not requests(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"clients": "phone-5"}', '{"clients": [5]}', "{}", "null"])
def test_a_file_that_is_no_request_is_ignored_and_removed(excluding, caplog, content):
    server, transport, folder = excluding
    (folder / "readmit-1.json").write_text(content)
    steps(server, transport, 1)
    assert "a request to readmit clients is ignored" in caplog.text
    assert server.coordinator.excluded == {LIAR}
    assert not requests(folder)


def test_the_command_says_what_it_did_as_json(excluding):
    folder = excluding[2]
    done = json.loads(CliRunner().invoke(app, ["readmit", str(folder), LIAR, LIAR, "--json"]).output)
    assert (done["clients"], done["excluded"]) == ([LIAR], [LIAR])
    assert json.loads(next(iter(requests(folder))).read_text()) == {"clients": [LIAR]}
    assert json.loads(CliRunner().invoke(app, ["readmit", str(folder), "--json"]).output)["clients"] is None


def test_a_folder_without_a_server_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected the state folder of .* there is no such folder"):
        request_readmission(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"it holds no server's state"):
        request_readmission(tmp_path, ["a"])
    assert not (tmp_path / "nowhere").exists()


def test_a_server_without_a_folder_takes_no_requests(caplog):
    caplog.set_level("INFO")
    server, transport = a_server(None)
    steps(server, transport, MAX_REFUSALS)
    assert server.coordinator.excluded == {LIAR}
    assert "`Coordinator.readmit` takes that back" in caplog.text
    assert server.coordinator.readmit() == [LIAR]
    assert LIAR in steps(server, transport, 1)[0]


def test_coordinators_and_sessions_return_whom_they_readmit():
    session = Session(make_selector("random", k=2))
    session.join(list("abcd"))
    coordinator = session.coordinator
    coordinator.ledger.trust.observe_verdicts(np.array([1]), np.array([False]), coordinator.step)
    assert session.excluded == coordinator.excluded == {"b"}
    assert session.readmit(["a"]) == []
    assert session.readmit(["a", "b"]) == ["b"]
    assert session.excluded == set()
    with pytest.raises(InputError, match="nobody"):
        session.readmit(["nobody"])
    coordinator.ledger.trust.observe_verdicts(np.array([1]), np.array([False]), coordinator.step)
    assert Coordinator.readmit(coordinator) == ["b"]
    session.observe([Outcome(client, seconds=1.0) for client in session.select().clients])
