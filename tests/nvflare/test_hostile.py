"""The catalogue of bad replies against NVFlare's transport and server, restarted after every round."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

import fedpace
from fedpace.core.settings import Settings
from fedpace.hosting.live_server import Server
from fedpace.hosting.replies import Note
from fedpace.nvflare.client import NOTE
from fedpace.nvflare.controller import HOST, BroadcastTransport
from fedpace.testing import hostile
from fedpace.testing.hostile import CLIENTS, LIAR, ROUNDS, Played, check_host

START = {"w": np.array([0.0, 0.5, 1.0], np.float32), "b": np.zeros((2, 1), np.float32)}


def site(name, received, change, kind):
    """Train, and send what `change` makes of it; None = the site raised."""
    number = CLIENTS.index(name)
    step = {key: np.full(array.shape, 0.1 + number / 100, np.float32) for key, array in received.items()}
    trained = {key: received[key] + step[key] for key in step}
    try:
        reply = hostile.Reply(trained, {"loss": 0.5}, 10, {"seconds": 1.0 + number})
        made = change(reply) if name == LIAR else reply
        params = made.model
        if kind == ParamsType.DIFF and params is not None:
            params = {
                key: array - received[key] if np.shape(array) == np.shape(received.get(key)) else array
                for key, array in params.items()
            }
        meta = {NOTE: made.note, "NUM_STEPS_CURRENT_ROUND": made.samples}
        return FLModel(params_type=kind if params else None, params=params, metrics=made.metrics, meta=meta)
    except Exception:
        return None


def one_round(model, folder, change, kind):
    """Play a round as the controller does; return who failed, and the new model."""

    def broadcast(data, targets):
        for name in targets:
            result = site(name, data.params, change, kind)
            if result is None:
                tasks.ended(data.meta, [name], "it answered with EXECUTION_EXCEPTION")
                continue
            result.meta |= {"client_name": name, "props": data.meta}
            tasks.answered(result)

    tasks = BroadcastTransport(broadcast, lambda: False, (8, 0))
    scheme = fedpace.make_selector("random", k=len(CLIENTS))
    server = Server(scheme, Settings(), HOST, clock="reported", folder=folder)
    server.membership.update({name: Note(name=name) for name in CLIENTS})
    shared = server.share(model)
    step = server.next_step(tasks.on(FLModel(params=dict(model))), CLIENTS)
    server.apply(step)
    failed = server.stepped(step, shared.arrays, moved=True).failed
    server.files.close()
    return failed, shared.arrays


@pytest.fixture(params=[ParamsType.FULL, ParamsType.DIFF])
def play(request, tmp_path):
    folders = itertools.count()

    def rounds(change):
        folder, model, failed, models = tmp_path / str(next(folders)), START, [], []
        for _ in range(ROUNDS):
            who, model = one_round(model, folder, change, request.param)
            failed.append(who)
            models.append(model)
        return Played(failed, models)

    return rounds


def test_no_reply_stops_the_server_or_reaches_the_model(play):
    check_host(play)
