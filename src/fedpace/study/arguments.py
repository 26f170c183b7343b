"""Converts arguments of `compare` and `simulate` (names, objects, arrays, modules) to parts of an experiment."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar, cast, get_args

import numpy as np

from fedpace._base import checks, registry
from fedpace._base.checks import one_of
from fedpace._base.errors import FedpaceError, InputError, MissingExtraError
from fedpace._base.registry import Catalogue, parse_named, scheme_table, split_list
from fedpace.config import LabelledScheme, build
from fedpace.core.types import DelayConfig
from fedpace.data.arrays import ArrayData, Problem, data_from_arrays, listed, number_names, pair_of, task_of
from fedpace.data.federated import Better, DataConfig, MeasuredData
from fedpace.delays.trace import delays_from_array
from fedpace.models.contract import ModelConfig
from fedpace.models.custom import CustomModel, Functions, UserModel, named, with_functions
from fedpace.sim.engines import EngineName
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.training import Training

T = TypeVar("T")

USUAL_TRAINING: Mapping[str, Any] = {"epochs": 5, "batch": 32, "lr": 0.05}
"""Default options of local training in `compare`."""


@dataclass(frozen=True)
class Ground:
    """A data set and a model."""

    data: DataConfig
    model: ModelConfig


def ground(
    clients: Any, test: Any, data: Any, model: Any, *, task: Problem | None = None, head: str | None = None
) -> Ground:
    """Return data and model; pass `clients` and `test` as arrays, or `data` as a data set of fedpace or its name."""
    if model is None:
        raise InputError("model is missing: give a torch.nn.Module, or a name such as 'softmax'")
    if (clients is None) == (data is None):
        raise InputError("give either clients=[(X, y), ...] with test=(X, y), or data= with a data set of fedpace")
    if task is not None:
        one_of(task, get_args(Problem), "task")
    if clients is None:
        return _named_ground(data, test, model, head)
    if test is None:
        raise InputError("test is missing: give test=(X, y), what the shared model is judged by")
    named = tuple(map(str, clients)) if isinstance(clients, Mapping) else None
    handed = [pair_of(pair, f"client {at}") for at, pair in enumerate(listed(clients))]
    pairs, test, names = number_names(handed, test)
    shape = pairs[0][0].shape[1:]
    config = _component(registry.models, model, "model") if _is_config(model) else _wrapped(model, shape, head)
    outputs = config.outputs if isinstance(config, UserModel) else None
    targets = [y for _, y in pairs]
    if names and task == "regression":
        raise InputError(f"regression needs numbers, but the targets are names, such as {names[0]!r}")
    if outputs is not None and 1 < outputs < len(names):
        raise InputError(
            f"the targets are {len(names)} names, but the model has {outputs} outputs: give it one per name"
        )
    chosen = task or task_of(targets, outputs or 1)
    classes = None if chosen == "regression" else _classes(targets, outputs, config.name)
    if chosen == "regression" and outputs not in (1, None):
        raise InputError(f"regression needs a model with one output, but {config.module} has {outputs}")
    tokens = isinstance(config, UserModel) and config.tokens
    found: ArrayData = data_from_arrays(pairs, test, task=chosen, classes=classes, tokens=tokens, names=named)
    return Ground(cast("DataConfig", found), config)


def with_own(found: Ground, functions: Functions, better: Better) -> Ground:
    """Return data and model with the user's functions."""
    one_of(better, get_args(Better), "better")
    model = with_functions(found.model, functions)
    if functions.metric is None:
        return Ground(found.data, model)
    data = MeasuredData(found.data, named(functions.metric), better)
    return Ground(cast("DataConfig", data), model)


def _named_ground(data: Any, test: Any, model: Any, head: str | None) -> Ground:
    if test is not None:
        raise InputError("test belongs to clients=: a data set of fedpace brings its own test data")
    source = _component(registry.datasets, data, "data")
    if _is_config(model):
        return Ground(source, _component(registry.models, model, "model"))
    federated = source.build(seed=0)
    wrapped = _wrapped(model, federated.input_shape, head)
    if wrapped.outputs != federated.outputs:
        raise InputError(
            f"{wrapped.module} has {wrapped.outputs} outputs, but {federated.name} needs {federated.outputs}"
        )
    return Ground(source, wrapped)


def _classes(targets: Sequence[Any], outputs: int | None, model: str) -> int:
    most = 1 + max(int(np.max(y)) if y.ndim == 1 or y.shape[1] == 1 else 0 for y in targets)
    if outputs is None:
        return max(most, 2)
    if outputs == 1:
        raise InputError(
            "the model has one output, but the targets are classes: give it one output per class, two for yes and no, "
            "without a softmax or a sigmoid; or say task='regression'"
        )
    return outputs


def delay_model(delays: Any) -> DelayConfig:
    """Return a delay model from its name, an object, or seconds of shape (clients,) or (rounds, clients)."""
    if isinstance(delays, str) or hasattr(delays, "build"):
        return cast("DelayConfig", _component(registry.delays, delays, "delays"))
    return delays_from_array(delays)


def schemes(given: Any) -> tuple[LabelledScheme, ...]:
    """Return the schemes, each given by name (`"random(k=5)"`), as an object, or as (label, name or object)."""
    if isinstance(given, str):
        given = split_list(given, "schemes")  # as the command line takes them
    entries = [given] if hasattr(given, "name") else checks.listed(given, "schemes")
    if not entries:
        raise InputError("schemes names none: give some, such as ['random(k=5)', 'pace']")
    found = [_scheme(entry) for entry in entries]
    labels = [scheme.label for scheme in found]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"two schemes are called {label!r}: give each a label, as in ('mine', 'random(k=5)')")
    return tuple(found)


def _scheme(entry: Any) -> LabelledScheme:
    if isinstance(entry, tuple) and len(entry) == 2:
        inner = _scheme(entry[1])
        return LabelledScheme(str(entry[0]), inner.selector, inner.server)
    if isinstance(entry, str):
        table = scheme_table(entry, "schemes")
        label = str(table.pop("label", table["name"]))
        return LabelledScheme(label, _from_table(registry.selectors, table, "schemes"))
    if not hasattr(entry, "name") or isinstance(entry, type):
        raise InputError(f"expected the name of a scheme or a scheme with its options, but {entry!r} came")
    return LabelledScheme(entry.name, entry)


def training(given: Any, **options: float | None) -> Training:
    """Return the options of local training: `given`, or the defaults changed by `options`."""
    named = {name: value for name, value in options.items() if value is not None}
    if given is None:
        return Training(**{**USUAL_TRAINING, **named})
    if named:
        values = ", ".join(f"{name}={value!r}" for name, value in named.items())
        raise InputError(f"both training= and {values} came: put all of it into Training(...), or leave training= out")
    return instance(given, Training, "training")


def on_device(training: Training, device: str | None, precision: str | None) -> Training:
    """Return the options of local training with this device and precision; None = as they are."""
    given: dict[str, Any] = {"device": device, "precision": precision}
    return replace(training, **{name: value for name, value in given.items() if value is not None})


def instance(given: Any, kind: type[T], what: str) -> T:
    """Return `given`, or `kind()` if it is None; raise if it is not a `kind`."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        named = f"{kind.__module__}.{kind.__name__}"
        raise InputError(f"{what} must be a {named}(...), but {given!r} came")
    return given


def server_step(server: Any) -> Any:
    """Return a server step from its name or an object; None stays None."""
    return None if server is None else _component(registry.servers, server, "server")


def robust_rule(robust: Any) -> Any:
    """Return a robust rule from its name (`"trimmed-mean(fraction=0.3)"`) or an object; None stays None."""
    if robust is None:
        return None
    rule = _component(registry.robust, robust, "robust")
    if not (is_dataclass(rule) and callable(getattr(rule, "combine", None)) and hasattr(rule, "validates")):
        raise InputError(
            "robust must be the name of a robust rule, such as 'trimmed-mean', or a dataclass with name, validates and "
            f"combine (fedpace.trust.robust.RobustRule), but {robust!r} came"
        )
    return rule


def engine_options(engine: EngineName | EngineOptions, model: ModelConfig) -> EngineOptions:
    """Return the options of the engine. With `auto`, a user's own module is trained in this process.

    Worker processes must import the module's class, which is impossible if the main script defines it.
    """
    options = engine if isinstance(engine, EngineOptions) else EngineOptions(engine)
    if isinstance(model, CustomModel) and options.name != "inline":
        if options.name != "auto":
            raise InputError(
                f"your own functions are called in this process, but engine {options.name} came: leave engine out, or "
                "use engine='inline'"
            )
        return EngineOptions("inline")
    if not isinstance(model, UserModel) or options.name == "inline":
        return options
    if options.name == "auto":
        return EngineOptions("inline")
    source = model.__dict__["source"]
    parts = source.modules() if _is_module(source) else [source]
    from_main = next((part for part in parts if getattr(type(part), "__module__", "") == "__main__"), None)
    try:
        pickle.dumps(model)
    except Exception as cause:  # whatever a user's object raises
        raise InputError(f"{model.module} cannot be sent to other processes ({cause}): use engine='inline'") from cause
    if from_main is not None or getattr(source, "__module__", "") == "__main__":
        raise InputError(
            f"{model.module} is defined in the script itself, where other processes cannot import it: move it into a "
            "module of its own, or use engine='inline'"
        )
    return options


def _is_config(model: Any) -> bool:
    return isinstance(model, str) or (hasattr(model, "build") and not isinstance(model, type) and not _is_module(model))


def _is_module(given: Any) -> bool:
    """Return whether `given` is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def _wrapped(model: Any, input_shape: tuple[int, ...], head: str | None) -> UserModel:
    try:
        from fedpace.models._modules import wrap
    except ModuleNotFoundError as cause:
        if cause.name != "torch":
            raise
        raise MissingExtraError("a model of your own", "sim", "torch") from cause
    return wrap(model, input_shape, head=head)


def _component(catalogue: Catalogue, given: Any, what: str) -> Any:
    if isinstance(given, str):
        return _from_table(catalogue, parse_named(given, what), what)
    if isinstance(given, type) or not hasattr(given, "name"):
        raise InputError(f"{what} must be a name or an object of fedpace, but {given!r} came")
    return given


def _from_table(catalogue: Catalogue, table: dict[str, Any], what: str) -> Any:
    options = dict(table)
    try:
        return build(catalogue[options.pop("name")], options, what)
    except FedpaceError as cause:
        text = str(cause)
        raise InputError(text if text.startswith(what) else f"{what}: {text}") from cause
