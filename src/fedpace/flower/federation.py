"""`Federation`, the base class of `PacedStrategy` and `PacedServer`: their settings, coordinator and nodes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedpace._base.checks import at_least, whole
from fedpace.core.coordinator import Coordinator
from fedpace.core.server_rule import ServerRule
from fedpace.core.settings import Settings
from fedpace.core.tasks import Policy
from fedpace.core.types import Need, Selector
from fedpace.flower.grid import GridTransport, connected_nodes
from fedpace.flower.node_names import Eligible, NodeNames, eligibility, wait_for_nodes
from fedpace.flower.wire import ASK_LABELS, ASK_SAMPLES, record
from fedpace.hosting.aggregator import TrustedAggregator
from fedpace.hosting.membership import FORGET_SECONDS
from fedpace.hosting.server import Clock, Host, Server, live_settings, make_selector, make_server
from fedpace.hosting.shared_model import ArraysValidation
from fedpace.trust.robust import RobustRule

log = logging.getLogger("flwr")

WAITING = "waiting for nodes and names"
"""Label of the first seconds in the log of where the server's time goes."""
REMEDIES = {
    Need.MOMENT: "add report_mod(module=...) to the mods of its ClientApp",
    Need.LOSS: "put train_loss into the metrics of its reply",
    Need.LABELS: "give report_mod labels=",
}


class Federation:
    """The settings of `PacedStrategy` and `PacedServer`.

    Args:
        selector: a scheme's name, a Selector, or a Policy. Clients that do not report what the scheme needs are still
            asked, a quota per round as in a lazy warm-up, and a warning names each of them.
        state: folder in which every round is saved and recorded (`fedpace report` and `fedpace watch` read it), and
            from which a restarted server continues; None = save nothing.
        settings: a `fedpace.Settings`; None = its fields as keyword arguments, such as `seed=1` or `deadline=60`. By
            default all nodes train in the first round, which ends when half of them have answered
            (`warmup="full"`, `warmup_wait=0.5`, `warmup_trains=True`). With `shares="samples"`, the numbers of samples
            come from `report_mod(samples=...)` or `labels=`, before a node first trains.
        clock: `server`: seconds are measured by the server, from sending a message to receiving its reply. `reported`:
            seconds are those that clients report, for example from delay models, and the server does not really wait.
        loss_key: metric with the client's training loss; empty = train_loss, train-loss or loss.
        sketch: entries of an update's sketch, for schemes that compare updates.
        robust: a Byzantine-robust rule in place of the weighted mean, or its name; see docs/trust.md.
        validation: a function that trains a model on the server's own data; it takes and returns named arrays. For the
            robust rules `fltrust` and `zeno`.
        forget_seconds: forget clients that were not connected for this long; clients without a name after 600 s.
        eligible: names of the clients that may be selected, or a function from a name to whether it may be selected,
            called in every round; None = all.
        bind_names: whether a name belongs for good to the first node id that used it. Turn it on if the SuperLink
            authenticates SuperNodes, because their ids then stay the same. Otherwise a node that reconnects has a new
            id.
        name_seconds: how long a new node may take to send its name; 0 = use node ids as names.
        nodes_seconds: how long to wait at the start for as many nodes as the scheme selects. After that the server
            starts with the connected nodes, or raises an error if there are too few.
        server: the server step, or its name; None = the one that the scheme asks for.
        accepts_work: whether the clients train as much as the `work` in a task's config says, with
            `fedpace.flower.local_steps`. Schemes that set work need it, and are refused otherwise.
        local_steps: usual number of local steps, if it is the same for all clients; tasks then also have the number of
            `local-steps` to make. 0 = each client knows its own.
        secure: a `fedpace.TrustedAggregator`, for which the clients seal their updates (`sealed_mod`): the server sees
            sums only (docs/privacy.md). For `PacedServer`.
        track: experiment trackers that get every step while the server works: `"mlflow"`, `"wandb"`, `"tensorboard"`,
            `"otel"`, or a list; see docs/howto/track.md. A tracker that fails does not stop the server.
        weight_key, array_key, config_key: names of the number of samples, the model and the configuration in messages.
        options: fields of `fedpace.Settings`, and options of the scheme if it is given by name. If an option of the
            scheme has the name of an argument or of a setting, pass a Selector instead.
    """

    def __init__(
        self,
        selector: str | Selector[Any] | Policy[Any],
        *,
        state: str | Path | None = None,
        settings: Settings | None = None,
        clock: Clock = "server",
        loss_key: str = "",
        sketch: int = 256,
        robust: str | RobustRule | None = None,
        validation: ArraysValidation | None = None,
        forget_seconds: float = FORGET_SECONDS,
        eligible: Eligible = None,
        bind_names: bool = False,
        name_seconds: float = 120.0,
        nodes_seconds: float = 600.0,
        server: str | ServerRule[Any] | None = None,
        accepts_work: bool = False,
        local_steps: int = 0,
        secure: TrustedAggregator | None = None,
        track: Any = None,
        weight_key: str = "num-examples",
        array_key: str = "arrays",
        config_key: str = "config",
        **options: Any,
    ) -> None:
        at_least(nodes_seconds, 0, "nodes_seconds")
        whole(local_steps, 0, "local_steps")
        settings = live_settings(settings, options)
        self._scheme: Any = make_selector(selector, options, inspect.signature(Federation).parameters)
        self._nodes_seconds = nodes_seconds
        self._eligible = eligibility(eligible)
        self._weight_key, self._array_key, self._config_key = weight_key, array_key, config_key
        self._server = Server(
            self._scheme,
            settings,
            Host("flower", log, REMEDIES).accepting(work=accepts_work),
            clock=clock,
            folder=None if state is None else Path(state),
            rule=self._server_rule(server),
            robust=robust,
            validation=validation,
            sketch=sketch,
            loss_key=loss_key,
            forget_seconds=forget_seconds,
            track=track,
            secure=secure,
        )
        saved = self._server.saved
        self._arrays = None if saved is None else record(saved.model)
        """The current version of the shared model."""
        questions = {ASK_LABELS: Need.LABELS in self.coordinator.wanted, ASK_SAMPLES: settings.shares == "samples"}
        owners = {} if saved is None else {str(name): int(node) for name, node in saved.extra.get("names", {}).items()}
        self._node_names = NodeNames(name_seconds, config_key, questions, owners if bind_names else None)
        self._transport = GridTransport(
            weight_key,
            (sketch, settings.seed),
            work=bool(self._scheme.sets_work),
            local_steps=local_steps,
            parcel=None if secure is None else secure.parcel,
        )

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator: it holds the known clients and the state of the scheme."""
        return self._server.coordinator

    def _server_rule(self, server: str | ServerRule[Any] | None) -> ServerRule[Any] | None:
        """Return the server rule; None = the one that the scheme asks for."""
        return make_server(server)

    def close(self) -> None:
        """Close the state folder; call it if your own loop calls the rounds instead of `start`."""
        self._server.files.close()

    def _wait_for_nodes(self, grid: Grid, least: int = 1) -> None:
        """Wait until as many nodes are connected as the scheme selects; after the time limit, `least` are enough."""
        scheme = self._scheme
        with self._server.watch(WAITING):
            wait_for_nodes(grid, scheme.fixed_k or 1, least, seconds=self._nodes_seconds, scheme=scheme.name)

    def _present(self, grid: Grid, nodes: Iterable[int] | None = None) -> dict[str, int]:
        """Return name -> node id of the eligible nodes among `nodes` (None = all connected); new clients join."""
        with self._server.watch("looking for nodes" if self._node_names.notes else WAITING):
            named = self._node_names.names(connected_nodes(grid) if nodes is None else nodes, grid)
        allowed = {name: node for name, node in named.items() if self._eligible(name)}
        self._server.membership.update({name: self._node_names.notes[name] for name in allowed})
        return {name: node for name, node in allowed.items() if name in self.coordinator.ledger}
