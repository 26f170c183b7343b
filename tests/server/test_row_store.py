"""How the memory of clients is stored: choice, room, mapped files; and large models step as small ones do."""

import logging
from dataclasses import fields

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.core import server_rule
from fedpace.core.server_rule import Gather, Source, Stack, join_state, split_state
from fedpace.numerics import parts
from fedpace.server import _memory, memory_corrected, nesterov
from fedpace.server._row_store import RowStore, bytes_of
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov

WIDTH, CLIENTS = 700, 9
RNG = np.random.default_rng(7)
OWN = RNG.normal(size=(CLIENTS, WIDTH))
OPTIMUM = RNG.normal(size=WIDTH)


def play(rule, steps, *, saves=False, shares=None):
    """States of a federation with late answers, silent clients and changing shares."""
    rng = np.random.default_rng(3)
    state, models = rule.init(np.zeros(WIDTH)), [np.zeros(WIDTH)]
    for version in range(steps):
        weighs = dict.fromkeys(range(CLIENTS), 1 / CLIENTS) if shares is None else shares(version)
        chosen = rng.permutation(CLIENTS)[: rng.integers(2, 6)]
        late = [client for client in rng.permutation(CLIENTS)[:2] if client not in chosen and version > 2]
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        for client, of in [(c, version) for c in chosen] + [(c, version - 2) for c in late]:
            update = 0.3 * (OPTIMUM - models[of]) + 0.97**version * OWN[client] + 0.01 * rng.normal(size=WIDTH)
            weight = 1 / len(chosen) if of == version else 0.0
            gather.add(models[of] + update, models[of], weight, Source(client, of, weighs.get(client, 0.0)))
        awaited = frozenset(range(version + 1))
        model, state = rule.apply(state, models[-1], gather.answers(version, awaited, weighs.get))
        models.append(np.asarray(model))
        if saves:
            scalars, vectors = split_state(state)
            state = join_state(rule.init(np.zeros(WIDTH)), scalars, {k: np.array(v) for k, v in vectors.items()})
        yield models[-1], state


@pytest.fixture
def in_small_parts(monkeypatch):
    """A model of 700 parameters counts as large."""
    for module in (server_rule, _memory, memory_corrected, nesterov, parts):
        monkeypatch.setattr(module, "LARGE", 100)
    monkeypatch.setattr(parts, "PART", 128)
    monkeypatch.setattr(parts, "RUN", 2)


def shares_change(version):
    """Client 2 weighs more from step 5 on, and client 4 leaves in step 8."""
    found = {client: (3.0 if client == 2 and version >= 5 else 1.0) for client in range(CLIENTS)}
    if version >= 8:
        del found[4]
    total = sum(found.values())
    return {client: share / total for client, share in found.items()}


@pytest.mark.parametrize("memory", ["float32", "16bit", "8bit", "4bit"])
@pytest.mark.parametrize("reach", [0.0, 1.5])
@pytest.mark.parametrize("shares", [None, shares_change])
def test_large_models_step_as_small_ones(memory, reach, shares, monkeypatch):
    rule = MemoryCorrected(reach=reach, memory=memory)
    small = list(play(rule, 14, shares=shares))
    for module in (server_rule, _memory, memory_corrected, nesterov, parts):
        monkeypatch.setattr(module, "LARGE", 100)
    monkeypatch.setattr(parts, "PART", 128)
    monkeypatch.setattr(parts, "RUN", 2)
    for name in ("STORED_BITS", "MOVE_BITS"):  # with fewer, inner products of 700 values are off by 1e-4 and more
        monkeypatch.setattr(nesterov, name, 16)
    large = list(play(rule, 14, shares=shares))
    # Rounding to a few bits turns the last digit of a double into a whole step for a few values.
    close = {"float32": 1e-5, "16bit": 3e-5, "8bit": 1e-3, "4bit": 2e-2}[memory]
    for (model, state), (other, again) in zip(small, large, strict=True):
        np.testing.assert_allclose(other, model, atol=close * np.abs(model).max())
        assert again.remembered_clients == state.remembered_clients
        for item in fields(state):
            value = getattr(state, item.name)
            if isinstance(value, float):
                np.testing.assert_allclose(getattr(again, item.name), value, rtol=20 * close, atol=close)
    assert len(large[-1][1].offset_sum) == WIDTH
    assert len(small[-1][1].offset_sum) == 0


def test_the_sum_of_offsets_is_the_sum(in_small_parts):
    rule = MemoryCorrected(memory="4bit", memory_gib=6 * bytes_of(WIDTH, 4) / 2**30)
    for _, state in play(rule, 14, shares=shares_change):
        store = RowStore(WIDTH, 4)
        told = zip(state.offsets.rows, state.remembered_shares, state.remembered_scales, strict=True)
        expected = sum(share * np.exp(state.log_scale - scale) * store.values(row) for row, share, scale in told)
        np.testing.assert_allclose(state.offset_sum, expected, atol=1e-6)
    assert state.remembered == 6


@pytest.mark.parametrize("memory", ["float32", "8bit", "4bit"])
@pytest.mark.parametrize("large", [False, True])
def test_a_restored_memory_goes_on_byte_for_byte(memory, large, request):
    if large:
        request.getfixturevalue("in_small_parts")
    rule = MemoryCorrected(reach=2.0, memory=memory)
    played = list(play(rule, 9, saves=True))
    for (model, _), (again, _) in zip(play(rule, 9), played, strict=True):
        assert model.tobytes() == again.tobytes()
    _, state = played[-1]
    assert {row.dtype for row in state.offsets.rows} == {np.dtype(np.float32 if memory == "float32" else np.uint8)}


def test_the_number_of_threads_changes_nothing(in_small_parts, monkeypatch):
    rule = MemoryCorrected(memory="4bit")
    for count in (1, 3):
        monkeypatch.setattr(parts, "threads", lambda count=count: count)
        parts._pool.cache_clear()
        *_, (model, _) = play(rule, 8)
        if count == 1:
            alone = model
    parts._pool.cache_clear()
    assert model.tobytes() == alone.tobytes()


@pytest.mark.parametrize("memory", ["float32", "4bit"])
@pytest.mark.parametrize("large", [False, True])
def test_rows_in_files_give_the_same_bytes_and_leave_nothing(memory, large, tmp_path, request):
    if large:
        request.getfixturevalue("in_small_parts")
    folder = tmp_path / "rows"
    *_, (model, _) = play(MemoryCorrected(memory=memory), 6)
    *_, (again, state) = play(MemoryCorrected(memory=memory, memory_folder=str(folder)), 6)
    assert model.tobytes() == again.tobytes()
    assert all(mapped(row) for row in (*state.offsets.rows, *state.references.rows))
    assert list(folder.iterdir()) == [], "the files have no names, so that none is left after a crash"


def mapped(row):
    while row is not None and not isinstance(row, np.memmap):
        row = row.base
    return row is not None


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    (tmp_path / "rows").write_text("")
    with pytest.raises(InputError, match="memory_folder must be a folder"):
        list(play(MemoryCorrected(memory_folder=str(tmp_path / "rows")), 1))


@pytest.mark.parametrize(
    ("clients", "gib", "before", "bits", "room"),
    [
        (50, 1.0, 32, 32, 1.0),  # 50 x 4 x 1,000,000 bytes fit
        (300, 1.0, 32, 16, 1.0),  # 1.2 GB do not
        (600, 1.0, 32, 8, 1.0),
        (1500, 1.0, 32, 4, 1.0),
        (3000, 1.0, 32, 4, 1.0),  # too many even in 4 bits: room for 2,021
        (50, 1.0, 4, 4, 1.0),  # once in 4 bits, it stays: clients that come and go do not convert all rows
        (50, 1.0, 8, 8, 1.0),
        (50, 1e-9, 32, 4, 0.0),
    ],
)
def test_auto_takes_the_most_bits_in_which_all_clients_have_room(clients, gib, before, bits, room):
    store = RowStore.choose("auto", 1_000_000, clients, gib=gib, before=before)
    assert store.bits == bits
    assert store.room == max(2, int(room * 2**30) // bytes_of(1_000_000, bits))
    assert RowStore.choose("16bit", 1_000_000, clients, gib=gib).bits == 16
    assert RowStore.choose("8bit", 1_000_000, clients, gib=gib).bits == 8
    assert RowStore.choose("float32", 1_000_000, clients, gib=gib).bits == 32


@pytest.mark.parametrize("large", [False, True])
def test_auto_changes_to_fewer_bits_when_clients_join_and_says_so(large, caplog, request):
    if large:
        request.getfixturevalue("in_small_parts")
    caplog.set_level(logging.INFO)
    rule = MemoryCorrected(memory_gib=3 * 4 * WIDTH / 2**30)
    states = [state for _, state in play(rule, 6)]
    bits = [state.memory_bits for state in states]
    assert bits == sorted(bits, reverse=True)
    assert {16, 8, 4} & set(bits[:-1]), "it goes down as clients join"
    assert states[-1].remembered > 3, "in single precision there is room for 3"
    if large:
        store = RowStore(WIDTH, bits[-1])
        told = zip(states[-1].offsets.rows, states[-1].remembered_shares, states[-1].remembered_scales, strict=True)
        expected = sum(share * np.exp(states[-1].log_scale - scale) * store.values(row) for row, share, scale in told)
        np.testing.assert_allclose(states[-1].offset_sum, expected, atol=1e-5)
    told = [state.told for state in states if state.told]
    assert f"{bits[-1]} bits" in told[-1]
    assert f"{bits[-1]} bits" in caplog.text
    assert [state.notes["memory"] for state in states if "memory" in state.notes][-1] == told[-1]


def test_forgotten_clients_are_told(caplog):
    rule = MemoryCorrected(memory="float32", memory_gib=3 * 4 * WIDTH / 2**30)
    known = set()
    for _, state in play(rule, 6):
        gone = set(state.forgotten_clients)
        assert not gone & set(state.remembered_clients)
        assert known - set(state.remembered_clients) <= gone
        known = set(state.remembered_clients)
    assert "forgot" in caplog.text
    assert state.remembered == 3


def test_four_bits_take_an_eighth_of_the_memory():
    *_, (_, whole) = play(MemoryCorrected(memory="float32"), 8)
    *_, (_, small) = play(MemoryCorrected(memory="4bit"), 8)
    assert whole.memory_bytes == 4 * WIDTH * (len(whole.offsets.rows) + len(whole.references.rows))
    rows, references = len(small.offsets.rows), len(small.references.rows)
    assert small.memory_bytes == rows * bytes_of(WIDTH, 4) + references * bytes_of(WIDTH, 16)
    assert 7 < 4 * WIDTH / bytes_of(WIDTH, 4) < 8


def test_stacks_of_bytes_are_saved_as_bytes():
    row = RowStore(WIDTH, 4).keep(OWN[0])
    stack = Stack.none(np.zeros(WIDTH)).of([row, row])
    assert stack.dtype == np.uint8
    assert stack.shape == np.asarray(stack).shape == (2, row.size)
    np.testing.assert_array_equal(np.asarray(stack)[1], row)


def test_momentum_of_large_models_is_that_of_small_ones(monkeypatch):
    def models():
        rule, rng = Nesterov(), np.random.default_rng(5)
        state, model = rule.init(np.zeros(WIDTH)), np.zeros(WIDTH)
        for _ in range(12):
            gather = Gather(rule, np.zeros(WIDTH), mean=False)
            for client in range(3):
                gather.add(model + 0.2 * (OPTIMUM - model) + 0.1 * OWN[client] * rng.normal(), model, 1 / 3)
            model, state = rule.apply(state, model, gather.answers())
            yield model, state

    small = list(models())
    for module in (nesterov, parts):
        monkeypatch.setattr(module, "LARGE", 100)
    monkeypatch.setattr(parts, "PART", 128)
    monkeypatch.setattr(nesterov, "STORED_BITS", 16)
    monkeypatch.setattr(nesterov, "MOVE_BITS", 16)
    for (model, state), (again, other) in zip(small, models(), strict=True):
        np.testing.assert_allclose(again, model, atol=1e-5)
        assert other.step_factor == pytest.approx(state.step_factor)
        assert other.carried == pytest.approx(state.carried, rel=1e-5)
        assert other.age == state.age


def long_steps(width, steps):
    """Models, states and lengths of moves of `nesterov` on a quadratic; its curvature limits the momentum."""
    rule, rng = Nesterov(), np.random.default_rng(6)
    speeds, optimum = rng.uniform(0.05, 0.6, width), rng.normal(size=width)
    state, model = rule.init(np.zeros(width)), np.zeros(width)
    for _ in range(steps):
        gather = Gather(rule, np.zeros(width), mean=False)
        for _ in range(3):
            gather.add(model + speeds * (optimum - model) + 0.05 * rng.normal(size=width), model, 1 / 3)
        model, state = rule.apply(state, model, gather.answers())
        yield model, state, state.moved


def test_few_bits_of_the_last_moves_change_no_step_of_a_large_model(monkeypatch):
    width = parts.LARGE + 1
    stored = list(long_steps(width, 5))
    assert stored[-1][1].last.dtype == np.uint8
    monkeypatch.setattr(nesterov, "LARGE", width)  # now a small one, in double precision
    for (model, state, moved), (other, again, far) in zip(stored, long_steps(width, 5), strict=True):
        assert np.linalg.norm(model - other) < 1e-4 * np.linalg.norm(other)
        assert moved == pytest.approx(far, rel=1e-3)
        for name in ("step_factor", "carried", "curvature"):
            assert getattr(state, name) == pytest.approx(getattr(again, name), rel=1e-3), name


def test_a_large_step_writes_over_the_vectors_of_the_state(in_small_parts):
    """And leaves it without momentum."""
    played = play(MemoryCorrected(memory="4bit"), 8)
    for _ in range(6):
        _, before = next(played)
    lead, total = before.momentum, before.offset_sum
    rows = dict(zip(before.remembered_clients, before.offsets.rows, strict=True))
    _, after = next(played)
    assert np.shares_memory(after.momentum, lead)
    assert np.shares_memory(after.offset_sum, total)
    assert [len(getattr(before, name)) for name in ("momentum", "last", "move_before", "lengths", "offset_sum")] == [
        0
    ] * 5
    assert len(rows) == CLIENTS
    for client, row in zip(after.remembered_clients, after.offsets.rows, strict=True):
        assert row is rows[client], "no row has a copy"


def test_a_reference_that_no_answer_can_need_gives_its_room_to_the_next(in_small_parts):
    rule = MemoryCorrected(memory="4bit")
    state, model, reference = rule.init(np.zeros(WIDTH)), np.zeros(WIDTH), None
    for version in range(4):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        for client in (0, 3):
            gather.add(model + OWN[client], model, 0.5, Source(client, version, 0.5))
        model, state = rule.apply(state, model, gather.answers(version, frozenset({version})))
        assert state.reference_versions == (version,)
        assert reference is None or state.references.rows[0] is reference
        (reference,) = state.references.rows


def failed(monkeypatch, memory, late):
    """A state of 9 clients whose step with clients 0 and 3 failed at its end, and what it needs to go on."""
    rule = MemoryCorrected(memory=memory)
    played = play(rule, 8)
    for _ in range(6):
        model, state = next(played)
    gather = Gather(rule, np.zeros(WIDTH), mean=False)
    gather.add(model + OWN[0], model, 1.0, Source(0, 6, 1 / CLIENTS))
    gather.add(model + OWN[3], model, float(not late), Source(3, 5 if late else 6, 1 / CLIENTS))
    answers = gather.answers(6, frozenset({5, 6}))
    stored = dict(zip(state.remembered_clients, (row.copy() for row in state.offsets.rows), strict=True))
    with monkeypatch.context() as patched:
        patched.setattr(Nesterov, "limited", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rule.apply(state, model, answers)
    return rule, state, model, answers, stored


@pytest.mark.parametrize("memory", ["float32", "4bit"])
@pytest.mark.parametrize("late", [False, True])
def test_a_state_whose_step_failed_goes_on_without_the_clients_of_the_step(in_small_parts, monkeypatch, memory, late):
    """Their rows are half written. All others are as they were, and their sum is computed anew."""
    rule, state, model, answers, stored = failed(monkeypatch, memory, late)
    assert set(state.remembered_clients) == set(range(CLIENTS)) - {0, 3}
    for client, row in zip(state.remembered_clients, state.offsets.rows, strict=True):
        np.testing.assert_array_equal(row, stored[client])
    assert len(state.remembered_versions) == len(state.remembered_responses) == CLIENTS - 2
    assert len(state.reference_versions) == len(state.references.rows) == len(state.reference_lengths) > 0
    assert len(state.offset_sum) == 0
    again, after = rule.apply(state, model, answers)
    assert np.isfinite(again).all()
    assert after.remembered == CLIENTS
    store = RowStore(WIDTH, after.memory_bits)
    told = zip(after.offsets.rows, after.remembered_shares, after.remembered_scales, strict=True)
    expected = sum(share * np.exp(after.log_scale - scale) * store.values(row) for row, share, scale in told)
    np.testing.assert_allclose(after.offset_sum, expected, atol=1e-6)
