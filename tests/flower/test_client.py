"""The mod: what it measures, what it sends, and what it keeps to itself."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from torch import nn

from fedpace._base.errors import InputError
from fedpace.flower import Privacy, report_mod
from fedpace.flower.mods import stable_name
from fedpace.flower.wire import ASK_MOMENT, ASK_NAME, ASK_TARGETS, RECORD, note_of


class Net(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
        self.head = nn.Linear(3, 2, bias=bias)

    def forward(self, x):
        return self.head(self.body(x))


BATCH = torch.arange(40, dtype=torch.float32).reshape(8, 5) / 40


def train_message(flower, kind=MessageType.TRAIN, **config):
    content = RecordDict({"arrays": flower.arrays([0.0]), "config": flower.config(config)})
    return Message(content, dst_node_id=3, message_type=kind)


def context(**node_config):
    return Context(1, 3, node_config, RecordDict(), {})


def reply_to(message, context):
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({})}), reply_to=message)


def torch_client(net, batches=(BATCH,)):
    def handle(message, context):
        for batch in batches:
            net(batch)
        return reply_to(message, context)

    return handle


@pytest.mark.parametrize("bias", [True, False])
def test_the_moment_is_that_of_the_last_layers_input(flower, bias):
    net = Net(bias)
    reply = report_mod(module="head")(
        train_message(flower, **{ASK_MOMENT: True}), context(), torch_client(net, (BATCH, 100 * BATCH))
    )
    rows = net.body(BATCH).detach().numpy()
    if bias:
        rows = np.hstack([rows, np.ones((8, 1))])
    moment = note_of(reply).moment
    np.testing.assert_allclose(moment.T @ moment, rows.T @ rows / 8, atol=1e-5)


LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])


@pytest.mark.parametrize(
    ("loss", "targets", "columns"),
    [
        (nn.functional.cross_entropy, LABELS, torch.eye(2)[LABELS]),
        (nn.CrossEntropyLoss(), LABELS, torch.eye(2)[LABELS]),
        (lambda outputs, y: nn.functional.nll_loss(outputs.log_softmax(1), y), LABELS, torch.eye(2)[LABELS]),
        (nn.functional.mse_loss, BATCH[:, :2], BATCH[:, :2]),
        (lambda outputs, y: nn.functional.mse_loss(outputs[:, 0], y), BATCH[:, 1], BATCH[:, 1:2]),
    ],
    ids=["function", "module", "nll", "regression", "one-column"],
)
def test_the_targets_are_those_of_the_first_loss(flower, loss, targets, columns):
    net = Net()

    def client(message, context):
        for factor in (1, 100):
            loss(net(factor * BATCH), targets).backward()
        return reply_to(message, context)

    message = train_message(flower, **{ASK_MOMENT: True, ASK_TARGETS: True})
    moment = note_of(report_mod(module="head")(message, context(), client)).moment
    rows = np.hstack([net.body(BATCH).detach().numpy(), np.ones((8, 1)), columns.numpy()])
    np.testing.assert_allclose(moment.T @ moment, rows.T @ rows / 8, atol=1e-5)


def test_without_targets_features_alone_are_sent_and_it_is_said(flower, caplog):
    message = train_message(flower, **{ASK_MOMENT: True, ASK_TARGETS: True})
    moment = note_of(report_mod(module="head")(message, context(), torch_client(Net()))).moment
    assert moment.shape[1] == 4
    assert "features alone are sent" in caplog.text


def test_no_hook_stays_behind(flower):
    from torch.nn.modules import module

    before = len(module._global_forward_pre_hooks)
    mod = report_mod(module="head")
    mod(train_message(flower, **{ASK_MOMENT: True}), context(), torch_client(Net()))
    with pytest.raises(ZeroDivisionError):
        mod(train_message(flower, **{ASK_MOMENT: True}), context(), lambda message, context: 1 / 0)
    assert len(module._global_forward_pre_hooks) == before


def test_the_moment_is_sent_only_when_asked_for(flower):
    reply = report_mod(module="head")(train_message(flower), context(), torch_client(Net()))
    assert note_of(reply).moment is None
    assert note_of(reply).seconds >= 0


@pytest.mark.parametrize("module", ["heads", "body.0.x"])
def test_a_wrong_module_is_said_and_training_goes_on(flower, caplog, module):
    reply = report_mod(module=module)(train_message(flower, **{ASK_MOMENT: True}), context(), torch_client(Net()))
    assert note_of(reply).moment is None
    assert f"module {module!r}" in caplog.text


def test_compression_bounds_what_is_sent(flower):
    rows = np.random.Generator(np.random.PCG64(0)).normal(size=(50, 9))
    mod = report_mod(features=lambda message, context: rows, max_rank=2)
    assert note_of(mod(train_message(flower, **{ASK_MOMENT: True}), context(), reply_to)).moment.shape == (2, 9)


def test_privacy_adds_noise_and_keeps_its_budget(flower):
    rows = np.random.Generator(np.random.PCG64(0)).normal(size=(50, 3))
    mod = report_mod(features=lambda message, context: rows, privacy=Privacy(1.0, 1e-5, clip=1.0, releases=2))
    here = context()
    moments = [note_of(mod(train_message(flower, **{ASK_MOMENT: True}), here, reply_to)).moment for _ in range(4)]
    assert [moment is None for moment in moments] == [False, False, True, True]
    assert not np.array_equal(moments[0], moments[1])  # fresh noise each time


def test_time_is_measured_and_may_be_modelled(flower):
    def slow(message, context):
        time.sleep(0.05)
        return reply_to(message, context)

    measured = note_of(report_mod(transfer=False)(train_message(flower), context(), slow))
    assert measured.compute >= 0.05
    assert measured.seconds == measured.compute
    message = train_message(flower)
    message.metadata.__dict__["_created_at"] -= 5.0
    assert note_of(report_mod()(message, context(), reply_to)).seconds >= 5.0
    modelled = report_mod(delay=lambda message, context, measured: 42.0)
    assert note_of(modelled(train_message(flower), context(), reply_to)).seconds == 42.0


def test_other_messages_pass_untouched(flower):
    reply = report_mod()(train_message(flower, MessageType.EVALUATE), context(), reply_to)
    assert RECORD not in reply.content


def test_the_name_is_told_without_training(flower):
    message = train_message(flower, **{ASK_NAME: True})
    reply = report_mod()(message, context(**{"partition-id": 4}), lambda message, context: 1 / 0)
    assert note_of(reply).name == "partition-4"
    assert not reply.content.array_records


@pytest.mark.parametrize(
    ("config", "name"),
    [({"name": "lab-7", "partition-id": 1}, "lab-7"), ({"partition-id": 0}, "partition-0"), ({}, "")],
)
def test_names_come_from_the_nodes_config(config, name):
    assert stable_name(context(**config)) == name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: report_mod(module="head", features=lambda m, c: [[1.0]]), "both module and features"),
        (lambda: report_mod(privacy=Privacy(1.0, 1e-5, 1.0)), "nothing to protect"),
        (lambda: report_mod(max_rank=0), "max_rank"),
        (lambda: Privacy(0.0, 1e-5, 1.0), "epsilon"),
        (lambda: Privacy(1.0, 0.0, 1.0), "delta"),
        (lambda: Privacy(1.0, 1e-5, -1.0), "clip"),
        (lambda: Privacy(1.0, 1e-5, 1.0, releases=0), "releases"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(call, message):
    with pytest.raises(InputError, match=message):
        call()
