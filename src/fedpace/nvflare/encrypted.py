"""`EncryptedFedAvg`: rounds under NVFlare's homomorphic encryption. The server adds up updates that it cannot read.

NVFlare's own filters do the encryption, with TenSEAL: `HEModelEncryptor` encrypts each site's update, and
`HEModelDecryptor` decrypts the shared model on the sites.

    job.to_server(EncryptedFedAvg(selector="pace", minimum=8, num_rounds=50))
    job.to_clients(HEModelEncryptor(weigh_by_local_iter=False), filter_type=FilterType.TASK_RESULT)
    job.to_clients(HEModelDecryptor(), filter_type=FilterType.TASK_DATA)

The server multiplies each encrypted update by the weight of its site and adds the products to the shared model, which
is encrypted from the first step on. So the server sees neither updates nor sums nor models. It can neither clip an
update nor reject one that is not finite, and it makes plain weighted steps: momentum and FedExP would need lengths.

All sites have the same secret key, as NVFlare provides it: a site that gives the key to the server opens all updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedpace._base.checks import at_least
from fedpace._base.errors import InputError, MissingExtraError
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import MINIMUM, Settings
from fedpace.core.tasks import Step
from fedpace.core.types import Need
from fedpace.hosting.replies import Raw, is_buffer
from fedpace.nvflare.controller import HOST, PacedFedAvg, unpacked

try:
    import tenseal
    from nvflare.app_opt.he import decomposers
    from nvflare.app_opt.he.constant import HE_ALGORITHM_CKKS
    from nvflare.app_opt.he.homomorphic_encrypt import load_tenseal_context_from_workspace
except ModuleNotFoundError as cause:
    raise MissingExtraError("homomorphic encryption on NVFlare", "nvflare-he", "tenseal") from cause

SEALED = b"encrypted"
"""Marks a reply whose update was checked to be encrypted."""


class EncryptedFedAvg(PacedFedAvg):
    """`PacedFedAvg` in rounds, on updates that only the sites can decrypt.

    Args:
        minimum: fewest sites in a step. Sites decrypt the models, and so see the sum of each step.
        context: file with the public keys in the server's startup folder, where NVFlare's provisioning puts it.
        kwargs: arguments of `PacedFedAvg`, without `server`, `robust` and `validation`.
    """

    def __init__(
        self,
        *args: Any,
        minimum: int = MINIMUM,
        context: str = "server_context.tenseal",
        **kwargs: Any,
    ) -> None:
        at_least(minimum, 2, "minimum of EncryptedFedAvg")
        # NVFlare builds the controller on the server from the attributes of the one that the job was made with.
        for name in ("server", "robust", "validation"):
            if kwargs.pop(name, "") not in ("", "average", None):
                raise InputError(f"EncryptedFedAvg makes plain weighted steps on encrypted updates: leave {name} out")
        settings = {**(kwargs.pop("settings", None) or {}), "minimum": minimum}
        self.minimum, self.context = minimum, context
        super().__init__(*args, settings=settings, server="average", **kwargs)
        self._context: Any = None
        self._sizes: dict[str, int] = {}
        """Array -> number of its entries."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Load the public keys, and go on as `PacedFedAvg` does."""
        decomposers.register()
        self._context = checked_public(load_tenseal_context_from_workspace(self.context, fl_ctx), self.context)
        super().start_controller(fl_ctx)
        if self._server.saved is not None:
            self._sizes = {name: int(size) for name, size in self._server.saved.extra["sizes"].items()}

    def send_model(self, *args: Any, data: FLModel, targets: list[str], **kwargs: Any) -> None:
        """Run the whole round, as `PacedFedAvg` does."""
        if not self._sizes:
            arrays = {name: np.asarray(array) for name, array in (data.params or {}).items()}
            if whole := [name for name, array in arrays.items() if is_buffer(name, array)]:
                raise InputError(
                    f"encrypted sums take no buffers, but the model has {', '.join(whole[:5])}: use a model without "
                    "batch norm"
                )
            self._sizes = {name: array.size for name, array in arrays.items()}
        super().send_model(*args, data=data, targets=targets, **kwargs)

    # -- what differs from PacedFedAvg ---------------------------------------------------------------------------------

    encrypted = True

    def _check_scheme(self, scheme: Any) -> None:
        offers = HOST.offers - {Need.UPDATE, Need.WORK, Need.LOSS}
        policy = Coordinator(scheme, Settings(aggregation="sums", minimum=self.minimum), offers=offers).policy
        if not policy.rounds:
            raise InputError(
                f"{policy.name} works without rounds, and EncryptedFedAvg only in rounds: use pace, or PacedFedAvg"
            )

    @property
    def _extra(self) -> dict[str, Any]:
        return {"sizes": self._sizes}

    def _apply(self, step: Step) -> bool:
        """Add the weighted updates to the shared model, and return whether there were enough sites."""
        shared = self._server.shared
        counted = [(task, weight) for task, weight in step.answers if weight != 0]
        if len({task.client for task, _ in counted}) < self.minimum:
            why = f"not opened: a sum needs at least {self.minimum} sites"
            self.coordinator.refuse(dict.fromkeys([task.id for task, _ in counted], why), step)
            return False
        updates = [
            (step.scale * weight, reply.carrier.params)
            for (_, weight), (_, _, reply) in zip(step.answers, self._server.answers(step), strict=True)
            if weight != 0
        ]
        shared.arrays = {
            name: _packed(self._summed(array, [(weight, arrays[name]) for weight, arrays in updates]))
            for name, array in shared.arrays.items()
        }
        return True

    def _summed(self, array: NDArray[Any], weighted: Sequence[tuple[float, Any]]) -> Any:
        """Return an array of the model plus the weighted sum of its encrypted updates."""
        first, *others = [update * float(weight) for weight, update in weighted]
        for other in others:
            first += other
        if array.dtype == np.uint8:
            return tenseal.ckks_vector_from(self._context, array.tobytes()) + first
        return first + np.asarray(array, dtype=np.float64).ravel().tolist()

    def _unpacked(self, result: FLModel) -> Raw:
        params: Mapping[str, Any] = result.params or {}
        if params:
            if result.params_type != ParamsType.DIFF:
                raise InputError("the sums need differences, but a whole model came: send params_type=DIFF")
            for name, size in self._sizes.items():
                update = params.get(name)
                if not isinstance(update, tenseal.CKKSVector) or update.size() != size:
                    raise InputError(
                        f"{name!r} should be an encrypted difference of {size} numbers: add HEModelEncryptor to the "
                        "filters of the site's results"
                    )
            result.params = {
                name: tenseal.ckks_vector_from(self._context, params[name].serialize()) for name in self._sizes
            }
        return replace(unpacked(result), model=None, sealed=SEALED if params else None)

    def _broadcast(self, data: FLModel, targets: list[str]) -> None:
        params = data.params or {}
        encrypted = {name: np.asarray(array).dtype == np.uint8 for name, array in params.items()}
        if any(encrypted.values()):
            keys = {MetaKey.PROCESSED_KEYS: encrypted, MetaKey.PROCESSED_ALGORITHM: HE_ALGORITHM_CKKS}
            packed = {name: np.asarray(array).tobytes() for name, array in params.items()}
            data = FLModel(
                params_type=ParamsType.FULL,
                params=packed,
                start_round=data.start_round,
                current_round=data.current_round,
                total_rounds=data.total_rounds,
                meta={**(data.meta or {}), **keys},
            )
        super()._broadcast(data, targets)


def checked_public(context: Any, name: str) -> Any:
    """Return a context without the secret key; raise InputError if it has one."""
    if context.is_private():
        raise InputError(
            f"{name} on the server holds the secret key, with which it could read every update: give it the file that "
            "NVFlare's HEBuilder makes for servers"
        )
    return context


def _packed(vector: Any) -> NDArray[Any]:
    """Return an encrypted vector as bytes, in an array that is sent and saved like others."""
    return np.frombuffer(vector.serialize(), dtype=np.uint8)


def decrypted(array: NDArray[Any], context: bytes, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """Return an array of a saved model, decrypted with a site's context.

    Args:
        array: an array from the state folder of an `EncryptedFedAvg`.
        context: content of a site's `client_context.tenseal`.
        shape: shape of the array; () = flat.
    """
    if array.dtype != np.uint8:
        return array
    found = tenseal.ckks_vector_from(tenseal.context_from(context), array.tobytes()).decrypt()
    if not all(math.isfinite(value) for value in found):
        raise InputError("the decrypted model is not finite: a site sent a broken update")
    return np.asarray(found, dtype=np.float32).reshape(shape or (-1,))
