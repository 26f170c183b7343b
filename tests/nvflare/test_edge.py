"""NVFlare's edge stack: the managers by themselves, and its own device simulator on loopback with 300 devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.edge.mud import Device, ModelUpdate

from fedpace import FedpaceError
from fedpace.nvflare.edge import AdmissionDeviceManager, AdmissionModelManager

JOB = Path(__file__).resolve().parents[2] / "examples" / "nvflare_edge" / "job.py"


def managers(**options):
    devices = AdmissionDeviceManager(**{"concurrency": 4, "options": {"buffer": 2}, **options})
    models = AdmissionModelManager(server="average")
    models._devices = devices
    models.fire_event = lambda *_: None
    models.initialize_model(DXO(data_kind=DataKind.WEIGHTS, data={"w": [[1.0, 2.0]]}), FLContext())
    return devices, models


def check_in(devices, leaf, count, first=0):
    found = {f"{leaf}-{n}": Device(f"{leaf}-{n}", leaf, 0.0) for n in range(first, first + count)}
    devices.update_available_devices(found, FLContext())


def update(version, devices, change, count=1):
    content = DXO(data_kind=DataKind.WEIGHT_DIFF, data={"dict": {"w": change}, "count": count})
    return {version: ModelUpdate(version, content.to_shareable(), dict.fromkeys(devices, 0.0))}


def test_devices_are_admitted_up_to_the_limit_and_once_per_version():
    devices, models = managers()
    context = FLContext()
    assert not devices.has_enough_devices_and_clients(context)
    check_in(devices, "west", 10)
    check_in(devices, "east", 10)
    assert devices.has_enough_devices_and_clients(context)
    models.generate_new_model(context)
    devices.fill_selection(1, context)
    assert len(devices.get_selection(context)) == 4
    assert not devices.should_fill_selection(context)
    assert set(devices.get_selection(context).values()) == {1}
    assert {name.split("-")[0] for name in devices.get_selection(context)} == {"west", "east"}


def test_sums_make_a_step_with_the_weights_of_their_groups():
    devices, models = managers(shares={"west": 0.75, "east": 0.25})
    context = FLContext()
    check_in(devices, "west", 3)
    check_in(devices, "east", 3)
    models.generate_new_model(context)
    devices.fill_selection(1, context)
    west = [name for name in devices.get_selection(context) if name.startswith("west")]
    east = [name for name in devices.get_selection(context) if name.startswith("east")]
    assert models.process_updates(update(1, west[:1], [[4.0, 0.0]]), context)
    assert models.current_model_version == 1
    assert models.process_updates(update(1, east[:1], [[0.0, 8.0]]), context)
    assert models.current_model_version == 2
    assert np.array(models.current_model.data["w"]) == pytest.approx(np.array([[1 + 3.0, 2 + 2.0]]))
    assert devices.admission.book.answered.sum() == 2
    # An answer of a device that is not in the selection any more does not count again.
    models.process_updates(update(1, west[:1], [[4.0, 0.0]]), context)
    assert devices.admission.book.answered.sum() == 2


def test_the_saved_model_is_the_mean_over_steps():
    devices, models = managers(options={"buffer": 1, "average": 1.0})
    context = FLContext()
    check_in(devices, "west", 4)
    models.generate_new_model(context)
    devices.fill_selection(1, context)
    for change in (2.0, 4.0):
        (name, *_) = devices.get_selection(context)
        models.process_updates(update(1, [name], [[change, change]]), context)
    assert np.array(models.current_model.data["w"]) == pytest.approx(np.array([[7.0, 8.0]]))
    saved = context.get_prop(AppConstants.GLOBAL_MODEL)["weights"]["w"]
    assert saved == pytest.approx(np.array([[5.0, 6.0]]))


def test_bad_sums_are_dropped_and_silent_devices_are_given_up():
    devices, models = managers(device_timeout=1e-9)
    context = FLContext()
    check_in(devices, "west", 6)
    models.generate_new_model(context)
    devices.fill_selection(1, context)
    (name, *_) = devices.get_selection(context)
    models.process_updates(update(1, [name], [[float("nan"), 0.0]]), context)
    assert models._buffer == []
    assert devices.should_fill_selection(context)
    assert devices.get_selection(context) == {}
    assert devices.admission.book.lost.sum() == 3


def test_mistakes_are_refused():
    with pytest.raises(FedpaceError, match="Did you mean 'paced'"):
        AdmissionDeviceManager(policy="pace")
    with pytest.raises(FedpaceError, match="concurrency"):
        AdmissionDeviceManager(concurrency=0)
    with pytest.raises(FedpaceError, match="step_timeout"):
        AdmissionModelManager(step_timeout=-1.0)


@pytest.mark.nvflare
@pytest.mark.slow
def test_nvflares_device_simulator_on_loopback(tmp_path):
    """Two leaves with 150 simulated devices each; every device trains once at most."""
    done = subprocess.run(
        [sys.executable, str(JOB), "--workspace", str(tmp_path / "edge")],
        env=os.environ | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    answers = [int(count) for count in re.findall(r"fedpace: version \d+ from (\d+) answers", output)]
    assert len(answers) == 11
    assert sum(answers) >= 200
    moved = [float(length) for length in re.findall(r"moved by (\S+)", output)]
    assert moved[-1] < 0.2 * moved[0]
