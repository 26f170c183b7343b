"""Homomorphic encryption: sums that the server cannot read, in parts and in NVFlare's simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")
pytest.importorskip("tenseal")

import tenseal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedpace._base.errors import InputError
from fedpace.nvflare.encrypted import SEALED, EncryptedFedAvg, checked_public, decrypted
from fedpace.records.run import read_run

JOB = Path(__file__).resolve().parents[2] / "examples" / "nvflare_digits" / "job.py"
PATIENCE = 1800


def keys():
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
    context.global_scale = 2**40
    return context


def public(context):
    found = tenseal.context_from(context.serialize())
    assert not found.is_private()
    return found


@pytest.fixture(scope="module")
def secret():
    return keys()


@pytest.fixture
def controller(secret):
    found = EncryptedFedAvg(selector="random", options={"k": 2}, minimum=2, num_rounds=1)
    found._context, found._sizes = public(secret), {"w": 5}
    return found


def result(secret, update, **changes):
    params = {"w": tenseal.ckks_vector(secret, update)}
    return FLModel(**{"params": params, "params_type": ParamsType.DIFF, "meta": {}} | changes)


def test_sums_over_many_steps_are_those_of_plain_numbers(controller, secret):
    rng = np.random.default_rng(0)
    model = rng.normal(size=5)
    held, expected = model.astype(np.float32), model.astype(np.float32).astype(float)
    for _ in range(30):
        updates, weights = rng.normal(size=(3, 5)), np.array([0.7, -0.2, 0.5])
        told = [controller._unpacked(result(secret, update)).carrier.params["w"] for update in updates]
        summed = controller._summed(held, list(zip(weights, told, strict=True)))
        held, expected = np.frombuffer(summed.serialize(), dtype=np.uint8), expected + weights @ updates
    read = decrypted(held, secret.serialize(save_secret_key=True), (5, 1))
    assert read.shape == (5, 1)
    np.testing.assert_allclose(read[:, 0], expected, atol=1e-4)


def test_the_server_cannot_decrypt(controller, secret):
    told = controller._unpacked(result(secret, np.ones(5)))
    assert told.model is None
    assert told.sealed == SEALED
    with pytest.raises(ValueError, match="secret"):
        told.carrier.params["w"].decrypt()
    with pytest.raises(InputError, match="holds the secret key"):
        checked_public(secret, "server_context.tenseal")


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"params": {"w": np.ones(5)}}, "add HEModelEncryptor"),
        ({"params_type": ParamsType.FULL}, "params_type=DIFF"),
        ({"params": {"v": np.ones(5)}}, "'w' should be an encrypted difference of 5 numbers"),
    ],
)
def test_what_is_not_encrypted_is_refused(controller, secret, lie, message):
    with pytest.raises(InputError, match=message):
        controller._unpacked(result(secret, np.ones(5), **lie))


def test_a_difference_of_another_length_is_refused(controller, secret):
    with pytest.raises(InputError, match="difference of 5 numbers"):
        controller._unpacked(result(secret, np.ones(4)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"selector": "pace-async"}, "only in rounds"),
        ({"selector": "fedbuff", "options": {"buffer": 8}}, "only in rounds"),
        ({"selector": "folb", "options": {"k": 8}}, "does not work with aggregation = 'sums'"),
        ({"selector": "random", "options": {"k": 3}}, "a sum needs at least 8"),
        ({"robust": "median"}, "leave robust out"),
        ({"server": "fedadam"}, "leave server out"),
        ({"minimum": 1}, "minimum"),
    ],
)
def test_what_cannot_be_encrypted_is_refused_before_the_job(given, message):
    with pytest.raises(InputError, match=message):
        EncryptedFedAvg(num_rounds=1, **given)


@pytest.fixture
def job(tmp_path):
    def run(name, *arguments):
        environment = os.environ | {
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
        }
        folders = ["--state", str(tmp_path / name / "state"), "--workspace", str(tmp_path / name / "workspace")]
        common = ["--sites", "5", "--k", "3", "--selector", "random", "--target", "1.01", "--warmup", "lazy"]
        done = subprocess.run(
            [sys.executable, str(JOB), *folders, *common, *arguments],
            env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return read_run(tmp_path / name / "state").rounds[1:]

    return run


def saved(folder):
    index = json.loads((folder / "state" / "paced.json").read_text())
    stored = np.load(folder / "state" / index["model"])
    return {name: stored[f"model-{place}"] for place, name in enumerate(index["arrays"])}


@pytest.mark.nvflare
@pytest.mark.slow
def test_the_simulator_makes_the_steps_of_the_plain_average(job, tmp_path):
    """NVFlare's filters encrypt and decrypt; a second job goes on with the encrypted model of the first."""
    plain = job("plain", "--rounds", "5", "--server", "average")
    first = job("encrypted", "--rounds", "3", "--encrypted")
    rounds = job("encrypted", "--rounds", "5", "--encrypted")
    assert rounds[:3] == first
    assert [set(entry.clients) for entry in rounds] == [set(entry.clients) for entry in plain]
    assert not any(entry.failed for entry in rounds)
    secret = (tmp_path / "encrypted" / "workspace" / "startup" / "client_context.tenseal").read_bytes()
    held = saved(tmp_path / "encrypted")
    assert all(array.dtype == np.uint8 for array in held.values()), "the server holds no readable model"
    for name, expected in saved(tmp_path / "plain").items():
        np.testing.assert_allclose(decrypted(held[name], secret, expected.shape), expected, atol=2e-4)
