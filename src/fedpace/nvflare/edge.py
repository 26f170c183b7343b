"""Admission on NVFlare's edge stack: a device manager and a model manager for its `ModelUpdateAssessor`.

    device_manager = AdmissionDeviceManager(policy="paced", concurrency=200)
    model_manager = AdmissionModelManager(device_manager_id="device_manager")

NVFlare's edge stack serves devices that check in at the leaves of a tree of clients. Inner nodes add up the updates of
their devices per model version and pass the sums to the server, where an assessor asks a device manager which devices
train and a model manager when the model steps. Here `fedpace.population.Admission` decides both. A device's group is
the leaf that it checked in at, such as a region, so that a sum belongs to one group and can be weighted by it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.edge.assessors.device_manager import DeviceManager
from nvflare.edge.assessors.model_manager import ModelManager
from nvflare.edge.mud import Device, ModelUpdate, PropKey

from fedpace._base import registry
from fedpace._base.checks import FloatArray, above, whole
from fedpace._base.rng import stream
from fedpace.core.server_rule import Answers
from fedpace.population.admission import Admission, Limits, averaged


class AdmissionDeviceManager(DeviceManager):  # type: ignore[misc]
    """Chooses devices by an admission policy; a device's group is the leaf client that it checked in at.

    Args:
        policy: name of the admission policy.
        options: options of the policy.
        concurrency: most devices that train at a time.
        shares: share of each leaf in the population; None = learnt from the devices that check in.
        initial_min_client_num: leaves that must have reported before training starts.
        device_reuse: whether a device may train again, with a newer model.
        device_timeout: seconds after which a device that has not answered counts as lost; 0 = never.
        seed: for all draws.
    """

    def __init__(
        self,
        policy: str = "paced",
        options: dict[str, Any] | None = None,
        concurrency: int = 100,
        shares: dict[str, float] | None = None,
        initial_min_client_num: int = 1,
        device_reuse: bool = True,
        device_timeout: float = 600.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        # NVFlare writes a job's configuration from the attributes with the names of the arguments.
        self.policy, self.options, self.concurrency, self.shares = policy, options, concurrency, shares
        self.initial_min_client_num, self.device_reuse = initial_min_client_num, device_reuse
        self.device_timeout, self.seed = device_timeout, seed
        whole(concurrency, 1, "concurrency")
        self.device_selection_size = concurrency
        self.current_selection_version = 0
        self.admission = Admission(
            registry.admission.make(policy, **(options or {})),
            Limits(concurrency=concurrency, min_separation=0.0),
            shares=shares,
            seed=seed,
        )
        self._group: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._rng = stream(seed, "devices")

    # -- devices ---------------------------------------------------------------------------------------------

    def update_available_devices(self, devices: dict[str, Device], fl_ctx: FLContext) -> None:
        """Note the devices that checked in, and the leaf of each."""
        for device_id, device in devices.items():
            if device_id not in self._group:
                group = device.to_dict().get(PropKey.CLIENT_NAME) or "unknown"
                self._group[device_id] = group
                row = self.admission.book.row(group, self.admission.limits.max_groups)
                if row is not None:
                    self.admission.book.known[row] += 1
        self.available_devices.update(devices)

    def fill_selection(self, current_model_version: int, fl_ctx: FLContext) -> None:
        """Admit devices: as many of each group as the policy says, drawn at random among those that may train."""
        now = time.monotonic()
        waiting: dict[int, list[str]] = {}
        for device_id in self._usable(current_model_version):
            row = self.admission.book.rows.get(self._group[device_id])
            if row is not None:
                waiting.setdefault(row, []).append(device_id)
        visits = np.zeros((3, len(self.admission.book)), dtype=np.int64)
        for row, devices in waiting.items():
            visits[1, row] = len(devices)
        accepted = self.admission.admit_counts(visits, now).accepted.sum(0)
        for row, count in enumerate(accepted.tolist()):
            for device_id in self._rng.choice(sorted(waiting.get(row, [])), count, replace=False).tolist():
                self.current_selection[device_id] = current_model_version
                self.used_devices[device_id] = {"model_version": current_model_version}
                self._began[device_id] = now
        if accepted.any():
            self.current_selection_version += 1
            self.log_info(fl_ctx, f"admitted {int(accepted.sum())} devices, {len(self.current_selection)} train")

    def answered(self, devices: dict[str, float]) -> list[str]:
        """Record answers; return the groups of the devices that were in the selection, one per device."""
        now = time.monotonic()
        groups = [self._group[device_id] for device_id in devices if device_id in self.current_selection]
        for group in groups:
            self.admission.answered(group, now)
        for device_id in devices:
            self.current_selection.pop(device_id, None)
        return groups

    def remove_devices_from_selection(self, devices: set[str], fl_ctx: FLContext) -> None:
        """Record devices that leave the selection without an answer as lost; `answered` has removed the others."""
        for device_id in devices:
            if self.current_selection.pop(device_id, None) is not None:
                self.admission.lost(self._group[device_id], time.monotonic())

    def remove_devices_from_used(self, devices: set[str], fl_ctx: FLContext) -> None:
        """Do nothing: a device may train again as soon as there is a newer model, which `used_devices` tells."""

    def should_fill_selection(self, fl_ctx: FLContext) -> bool:
        """Return whether there is room, after giving up devices that have not answered for too long."""
        if self.device_timeout:
            late = time.monotonic() - self.device_timeout
            self.remove_devices_from_selection({d for d in self.current_selection if self._began[d] < late}, fl_ctx)
        return self.admission.policy.room(self.admission.book, self.concurrency) > 0

    def has_enough_devices_and_clients(self, fl_ctx: FLContext) -> bool:
        """Return whether enough leaves have reported, and a device is there."""
        return bool(self._group) and len(set(self._group.values())) >= self.initial_min_client_num

    def get_active_model_versions(self, fl_ctx: FLContext) -> set[int]:
        """Return the versions that devices in the selection train from."""
        return set(self.current_selection.values())

    def _usable(self, version: int) -> list[str]:
        def fresh(device_id: str) -> bool:
            used = self.used_devices.get(device_id)
            return used is None or (self.device_reuse and used["model_version"] < version)

        return [name for name in self.available_devices if name not in self.current_selection and fresh(name)]


class AdmissionModelManager(ModelManager):  # type: ignore[misc]
    """Steps when the admission policy says so, with its weights and its server rule.

    Updates come as sums over devices. A sum whose devices are of one group gets the weight of that group; a sum over
    several groups the mean of theirs.

    Args:
        device_manager_id: id of the `AdmissionDeviceManager`.
        server: name of the server rule; empty = that of the policy.
        server_options: options of the server rule.
        step_timeout: seconds after which the model steps with whatever has arrived; 0 = never.
    """

    def __init__(
        self,
        device_manager_id: str = "device_manager",
        server: str = "",
        server_options: dict[str, Any] | None = None,
        step_timeout: float = 60.0,
    ) -> None:
        super().__init__()
        if step_timeout:
            above(step_timeout, 0, "step_timeout")
        self.device_manager_id, self.server, self.server_options = device_manager_id, server, server_options
        self.step_timeout = step_timeout
        self._made = registry.servers.make(server, **(server_options or {})) if server else None
        self._devices: AdmissionDeviceManager
        self._state: Any = None
        self._used: FloatArray | None = None
        """The model to save where the policy averages over steps."""
        self._buffer: list[tuple[FloatArray, int, list[str], int]] = []
        """(sum of updates, number of updates, their groups, version) since the last step."""
        self._stepped = time.monotonic()
        self._versions = {0: 0}
        """NVFlare's version -> steps that the policy had counted when it was made."""
        self.register_event_handler(EventType.START_RUN, self._start)

    def _start(self, event_type: str, fl_ctx: FLContext) -> None:
        found = fl_ctx.get_engine().get_component(self.device_manager_id)
        if not isinstance(found, AdmissionDeviceManager):
            self.system_panic(f"{self.device_manager_id} must be an AdmissionDeviceManager, not {type(found)}", fl_ctx)
            return
        self._devices = found

    def initialize_model(self, model: DXO, fl_ctx: FLContext) -> None:
        """Take the first model."""
        self.current_model = model

    def generate_new_model(self, fl_ctx: FLContext) -> None:
        """Make the next version: the first model itself, or a step with the answers in the buffer."""
        data = {name: np.asarray(value, dtype=np.float64) for name, value in self.current_model.data.items()}
        if self.current_model_version and self._buffer:
            answers, before = sum(len(held) for _, _, held, _ in self._buffer), self._flat(data)
            after = self._moved(before)
            length = float(np.linalg.norm(after - before))
            version = self.current_model_version + 1
            self.log_info(fl_ctx, f"fedpace: version {version} from {answers} answers, moved by {length:.6g}")
            steps, part = self._devices.admission.book.version, self._devices.admission.policy.averaging
            self._used = averaged(before if self._used is None else self._used, after, steps, part)
            data, kept = self._named(after, data), self._named(self._used, data)
        else:
            kept = data
        self.current_model_version += 1
        admission = self._devices.admission
        self._versions[self.current_model_version] = admission.book.version
        self.updates[self.current_model_version] = None
        plain = {name: value.tolist() for name, value in data.items()}
        self.current_model = DXO(data_kind=DataKind.WEIGHTS, data=plain)
        learnable = make_model_learnable(kept, {})
        fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=True)
        fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.current_model_version, private=True, sticky=True)
        self.fire_event(AppEventType.GLOBAL_WEIGHTS_UPDATED, fl_ctx)

    def prune_model_versions(self, versions_to_keep: set[int], fl_ctx: FLContext) -> None:
        """Forget versions that no device trains from."""
        kept = versions_to_keep | {self.current_model_version} | {version for _, _, _, version in self._buffer}
        for version in [version for version in self.updates if version not in kept]:
            del self.updates[version]
            del self._versions[version]

    def process_updates(self, model_updates: dict[int, ModelUpdate], fl_ctx: FLContext) -> bool:
        """Put sums of updates into the buffer, and step when it is time."""
        for version, update in model_updates.items():
            if not update or version not in self.updates:
                continue
            groups = self._devices.answered(update.devices)
            content = from_shareable(update.update).data
            vector = self._flat({name: np.asarray(value) for name, value in content["dict"].items()})
            if groups and np.isfinite(vector).all():
                self._buffer.append((vector, int(content.get("count", 1)), groups, version))
        admission = self._devices.admission
        late = self.step_timeout and time.monotonic() - self._stepped > self.step_timeout
        if self._buffer and (late or admission.step_due(time.monotonic())):
            self.generate_new_model(fl_ctx)
        return True

    def _moved(self, model: FloatArray) -> FloatArray:
        """Return the model after a step with the buffer, and empty it."""
        admission = self._devices.admission
        groups = [group for _, _, held, _ in self._buffer for group in held]
        versions = [self._versions[version] for _, _, held, version in self._buffer for _ in held]
        each = admission.weigh(groups, versions)
        ends = np.cumsum([len(held) for _, _, held, _ in self._buffer])
        weights = np.array([part.sum() for part in np.split(each, ends[:-1])])
        means = np.array([total / count for total, count, _, _ in self._buffer])
        step = weights @ means
        squares = np.einsum("ij,ij->i", means, means)
        rule = self._made or admission.server
        if self._state is None:
            self._state = rule.init(np.zeros(model.size))
        answers = Answers(step, weights, model + step, mean_square=float(weights @ squares))
        moved, self._state = rule.apply(self._state, model, answers)
        admission.stepped(time.monotonic())
        self._buffer.clear()
        self._stepped = time.monotonic()
        return np.asarray(moved, dtype=np.float64)

    @staticmethod
    def _flat(data: dict[str, Any]) -> FloatArray:
        return np.concatenate([np.asarray(data[name], dtype=np.float64).ravel() for name in sorted(data)])

    @staticmethod
    def _named(vector: FloatArray, like: dict[str, Any]) -> dict[str, Any]:
        found, start = {}, 0
        for name in sorted(like):
            size = like[name].size
            found[name] = vector[start : start + size].reshape(like[name].shape)
            start += size
        return found
