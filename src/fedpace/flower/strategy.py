"""`PacedStrategy` wraps a Flower strategy: fedpace selects and weights the nodes, the inner strategy does the rest.

A Flower round is one step of the coordinator. `configure_train` lets the inner strategy create its messages for all
nodes, sends the messages of the selected nodes, and returns when the round has ended, so nothing is left for Flower to
send. `aggregate_train` overwrites the weight key (`num-examples`) of the replies with the cohort's weights, and the
inner strategy aggregates. The simulator uses the same coordinator, so the same reports lead to the same cohorts.

After a restart, `start` continues at the next round, while Flower's own loop always begins at round 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from numpy.typing import NDArray

from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Step
from fedpace.core.types import Mode, Selector
from fedpace.flower.evaluation import common_metrics, metrics_of, usable_evaluations
from fedpace.flower.federation import Federation
from fedpace.flower.grid import check
from fedpace.flower.wire import record, unpacked
from fedpace.hosting.live_server import make_server
from fedpace.hosting.replies import Arrays, Reply
from fedpace.hosting.shared_model import mean_buffers
from fedpace.server import server_step
from fedpace.server.average import Average

log = logging.getLogger("flwr")

WITHOUT_WEIGHTS = ("Krum", "FedMedian", "FedTrimmedAvg", "Bulyan", "QFedAvg")
"""Flower strategies that ignore the weight key: fedpace selects their nodes, but cannot weight them."""
PER_CLIENT = frozenset({"rows", "sources"})
"""What server rules take that an average of a Flower strategy does not show (`fedpace.core.server_rule.Part`)."""
WITH_MOMENTUM = ("FedOpt", "FedAvgM")
"""Flower's server optimisers with momentum: a second momentum by fedpace would overshoot."""


def wrapped_strategies(inner: Any) -> Iterator[Any]:
    """Yield the strategy and the strategies that it wraps (attribute `strategy` of Flower's wrappers)."""
    while inner is not None:
        yield inner
        inner = getattr(inner, "strategy", None)


def attribute(inner: Strategy, name: str, default: Any) -> Any:
    """Return an attribute of the strategy or of one that it wraps; `default` if none has it."""
    return next((getattr(strategy, name) for strategy in wrapped_strategies(inner) if hasattr(strategy, name)), default)


def has_own_momentum(inner: Strategy) -> bool:
    """Return whether the strategy, or one that it wraps, has its own momentum."""
    return any(
        kind.__name__ in WITH_MOMENTUM for strategy in wrapped_strategies(inner) for kind in type(strategy).__mro__
    )


def check_inner(inner: Strategy) -> None:
    """Raise if the strategy cannot be wrapped; log a warning if it works only in part."""
    if not isinstance(inner, Strategy):
        raise InputError(
            f"PacedStrategy wraps a strategy of flwr.serverapp.strategy, but a {type(inner).__name__} came: "
            "strategies of the older flwr.server API must be moved to the Message API first"
        )
    fraction = attribute(inner, "fraction_train", 1.0)
    if fraction != 1.0:
        raise InputError(
            f"the inner strategy has fraction_train = {fraction}, so it would draw nodes at random before fedpace can "
            "choose: leave it at 1.0, and give the scheme the cohort's size where it has one"
        )
    kinds = [kind.__name__ for strategy in wrapped_strategies(inner) for kind in type(strategy).__mro__]
    if ignoring := [name for name in WITHOUT_WEIGHTS if name in kinds]:
        log.warning("fedpace: %s ignores weights: fedpace selects its nodes, but cannot weight them", ignoring[0])
    elif "MultiKrum" in kinds:
        log.warning("fedpace: MultiKrum weights only the models that it keeps, and chooses them without their weights")
    if any(name.startswith("DifferentialPrivacy") for name in kinds):
        log.warning(
            "fedpace: Flower's noise is made for num_sampled_clients equal weights: where a cohort is smaller or "
            "weighs one client more than 1 / num_sampled_clients, the guarantee is weaker than the multiplier says"
        )


def strategy_state(inner: Strategy) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Return the strategy's state (attributes that are dicts or lists of arrays), and its layout to restore it."""
    arrays: dict[str, NDArray[Any]] = {}
    layout: list[dict[str, Any]] = []
    for depth, strategy in enumerate(wrapped_strategies(inner)):
        for name, value in sorted(vars(strategy).items()):
            keys = list(value) if isinstance(value, dict) else None
            parts = list(value.values()) if isinstance(value, dict) else value
            if not (isinstance(parts, list) and parts and all(isinstance(part, np.ndarray) for part in parts)):
                continue
            start = len(arrays)
            arrays |= {str(start + i): part for i, part in enumerate(parts)}
            layout.append({"depth": depth, "name": name, "keys": keys, "start": start, "count": len(parts)})
    return arrays, layout


def restore_strategy_state(inner: Strategy, layout: list[dict[str, Any]], stored: Mapping[str, NDArray[Any]]) -> None:
    """Restore the arrays that `strategy_state` returned."""
    strategies = list(wrapped_strategies(inner))
    try:
        for item in layout:
            if item["depth"] >= len(strategies) or not hasattr(strategies[item["depth"]], item["name"]):
                raise InputError(
                    f"the saved state has {item['name']!r} of another strategy: wrap the same strategy, or use "
                    "another folder"
                )
            parts = [stored[str(item["start"] + i)] for i in range(item["count"])]
            value = parts if item["keys"] is None else dict(zip(item["keys"], parts, strict=True))
            setattr(strategies[item["depth"]], item["name"], value)
    except (KeyError, TypeError) as cause:
        raise InputError(f"the saved state of the inner strategy is damaged: {cause!r}") from cause


Weighed = tuple[float, Arrays, Reply]
"""Weight of an answer, model that was sent to its client, and the reply."""


def weighted_replies(
    answers: Sequence[Weighed], current: Arrays, mode: Mode, *, weight_key: str, array_key: str
) -> tuple[list[Message], list[float], list[Arrays]]:
    """Return replies that an averaging strategy can aggregate, their weights, and their models.

    In delta mode the new model is x + sum a_i (x_i - x). Each of the k models becomes x + k a_i (x_i - x). The plain
    mean of these is the new model, whatever the a_i sum to. The inner strategy sees only the changed models, so server
    optimisers act on the intended step. Buffers become their weighted mean, because a variance must not be
    extrapolated.

    Strategies divide weights by their sum. Here weights are first divided by the largest. So equal weights become
    exactly 1, and the result equals plain FedAvg with equal counts bit for bit.
    """
    weights = [weight for weight, _, _ in answers]
    models: list[Arrays] = [reply.model or {} for _, _, reply in answers]
    if mode == "delta":
        means = mean_buffers(current, zip(weights, models, strict=True))
        models = [_moved(current, m, len(answers) * weight) | means for weight, m in zip(weights, models, strict=True)]
        weights = [1.0] * len(weights)
    largest = max(weights, key=abs)
    shown = common_metrics([metrics_of(reply.carrier) for _, _, reply in answers])
    replies = []
    for (_, _, reply), model, weight, metrics in zip(answers, models, weights, shown, strict=True):
        message: Message = reply.carrier
        for key in (*message.content.array_records, *message.content.metric_records):
            del message.content[key]
        message.content[array_key] = record(model)
        message.content["metrics"] = MetricRecord({**metrics, weight_key: float(weight / largest)})
        replies.append(message)
    return replies, weights, models


def _moved(current: Arrays, trained: Arrays, weight: float) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, array in trained.items():
        base = np.asarray(current[name], dtype=np.float64)
        kind = array.dtype if np.issubdtype(array.dtype, np.floating) else base.dtype
        found[name] = np.asarray(base + weight * (np.asarray(array, np.float64) - base), dtype=kind)
    return found


class PacedStrategy(Federation, Strategy):
    """A Flower strategy (Message API) with fedpace's selection and weights. It must be the outermost wrapper.

    Args:
        inner: the strategy to wrap; leave its `fraction_train` at 1.
        selector: a scheme with rounds: its name, or a Selector. For asynchronous schemes use `PacedServer`.
        settings: settings of `Federation`, and options of the scheme. `server` is the server rule, applied to the inner
            strategy's average. None = the one that the scheme asks for, or none if the inner strategy is a server
            optimiser itself. At the start, `min_available_nodes` of the inner strategy are enough.
    """

    def __init__(self, inner: Strategy, selector: str | Selector[Any] = "pace", **settings: Any) -> None:
        check_inner(inner)
        scheme: Any = registry.selectors[selector] if isinstance(selector, str) else selector
        if not getattr(scheme, "rounds", True):
            raise InputError(
                f"{scheme.name} works without rounds, which a Flower strategy cannot do: use "
                "fedpace.flower.PacedServer, whose server steps are fedpace's own"
            )
        if settings.get("secure") is not None:
            raise InputError("a Flower strategy averages single models: use PacedServer with secure=, or SecureRounds")
        self.inner = inner
        super().__init__(
            selector,
            weight_key=str(attribute(inner, "weighted_by_key", "num-examples")),
            array_key=str(attribute(inner, "arrayrecord_key", "arrays")),
            config_key=str(attribute(inner, "configrecord_key", "config")),
            **settings,
        )
        if (saved := self._server.saved) is not None:
            with self._server.files.released_on_error():
                restore_strategy_state(inner, saved.extra.get("inner", []), saved.extra_arrays)
        self._before = self.coordinator.step
        """Rounds completed before this server started."""
        self._step: Step | None = None
        self._server_evaluates = False
        """Whether Flower calls an evaluation function on the server after each round."""
        self._client_metrics: MetricRecord | None = None
        """Mean metrics of the last evaluation on clients."""

    # -- the loop --------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run until `num_rounds` rounds are completed in total, including rounds before a restart."""
        check(grid)
        done = self._before = self.coordinator.step
        arrays = initial_arrays if self._arrays is None else self._arrays
        if done:
            log.info("fedpace: %d rounds are saved: continuing with round %d", done, done + 1)
        self._server.loop.reply_timeout = timeout

        self._server_evaluates = evaluate_fn is not None

        def evaluate(number: int, current: ArrayRecord) -> MetricRecord | None:
            found = None if evaluate_fn is None else evaluate_fn(number + done, current)
            self._server.files.evaluated(found or self._client_metrics or {})
            return found

        if done >= num_rounds:
            if self._server.files.unwritten:  # the server was killed between saving the last round and recording it
                evaluate(0, arrays)
            self._server.files.close("finished")
            result = Result()
            result.arrays = arrays
            return result
        with self._server.run_context():
            result = super().start(
                grid, arrays, num_rounds - done, timeout, train_config, evaluate_config, evaluate_fn and evaluate
            )
        # Flower counts rounds from 1 after a restart; the result counts from the first start.
        for history in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, history, {number + done: found for number, found in getattr(result, history).items()})
        return result

    def summary(self) -> None:
        """Log the scheme and the inner strategy's summary."""
        log.info("\t├──> fedpace chooses nodes and weights by %s", self._scheme)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the whole round; return no messages, because all have been sent."""
        self._step, self._arrays = None, arrays
        self._server.share(unpacked(arrays))
        if len(self.coordinator) < (self._scheme.fixed_k or 0):
            self._wait_for_nodes(grid, int(attribute(self.inner, "min_available_nodes", 1)))
        made = self.inner.configure_train(server_round + self._before, arrays, config, grid)
        offered = {message.metadata.dst_node_id: message for message in made}
        present = self._present(grid, offered)
        if not present:
            log.warning("fedpace: none of the %d nodes is eligible and has a name: skipping this round", len(offered))
            return []
        mine = {name: offered[node] for name, node in present.items()}
        self._step = self._server.next_step(self._transport.on(grid, mine.get), mine)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the round with the cohort's weights, and save the result."""
        step, self._step = self._step, None
        if step is None or self._arrays is None:
            return None, None
        with self._server.watch("stepping"):
            arrays, metrics = self._aggregate(server_round + self._before, step)
        if arrays is not None:
            self._arrays = arrays
        extra_arrays, layout = strategy_state(self.inner)
        extra = {"inner": layout, "names": self._node_names.bound or {}}
        self._server.stepped(
            step, unpacked(self._arrays), moved=arrays is not None, extra_arrays=extra_arrays, extra=extra
        )
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        return self.inner.configure_evaluate(server_round + self._before, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the inner strategy average the usable replies, and record the result if the server does not evaluate."""
        usable = usable_evaluations(replies, weight_key=self._weight_key)
        found = self.inner.aggregate_evaluate(server_round + self._before, usable) if usable else None
        self._client_metrics = found
        if not self._server_evaluates:
            self._server.files.evaluated(found or {})
        return found

    # -- helpers ----------------------------------------------------------------------------------------------

    def _server_rule(self, server: str | ServerRule[Any] | None) -> ServerRule[Any] | None:
        """Return the server rule; raise InputError if it needs updates that the inner strategy combines itself."""
        if server is None and has_own_momentum(self.inner):
            return Average()  # the inner strategy already has momentum: a second one would overshoot
        rule = server_step(self._scheme, make_server(server))
        if not PER_CLIENT & rule.takes or type(self.inner).aggregate_train is FedAvg.aggregate_train:
            return rule
        combines = f"{type(self.inner).__name__} combines the updates of clients itself"
        if server is not None or not hasattr(self._scheme, "memory_gib"):
            raise InputError(
                f"the server rule {rule.name} needs each client's update, but {combines}: wrap FedAvg, or give another "
                "rule, such as server='nesterov'"
            )
        log.warning("fedpace: %s, so %s works without its memory of clients", combines, self._scheme.name)
        return server_step(replace(self._scheme, memory_gib=0.0))

    def _aggregate(self, number: int, step: Step) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the answers, after the bounds on clients' influence.

        A server rule that needs each client's update makes the step itself. The inner strategy, which then only
        averages, still aggregates the metrics.
        """
        own_step = bool(PER_CLIENT & self._server.rule.takes)
        step, answers = (step, self._server.answers(step)) if own_step else self._server.bounded(step)
        if not any(weight for weight, _, _ in answers):
            log.warning("fedpace: no update with weight arrived: the model does not change")
            return None, None
        shared = self._server.shared
        replies, weights, models = weighted_replies(
            answers, shared.arrays, step.mode, weight_key=self._weight_key, array_key=self._array_key
        )
        arrays, metrics = self.inner.aggregate_train(number, replies)
        if own_step:
            return record(shared.arrays) if self._server.apply(step) else None, metrics
        if arrays is None or self._server.rule == Average():
            return arrays, metrics
        return record(shared.apply_to_average(unpacked(arrays), zip(weights, models, strict=True))), metrics
