"""What both of fedpace's servers on Flower are made of: the coordinator and its folder, names, messages."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedpace._base.checks import at_least
from fedpace.core.coordinator import Coordinator
from fedpace.core.roster import Settings, ShareRule, Warmup
from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Policy
from fedpace.core.types import Need, Selector
from fedpace.flower.roster import Eligible, Roster, eligibility, wait_for_nodes
from fedpace.flower.transport import Messages
from fedpace.flower.versions import nodes as connected
from fedpace.flower.wire import ASK_LABELS, ASK_SAMPLES, record
from fedpace.hosting.presence import FORGET
from fedpace.hosting.schemes import make_selector, make_server
from fedpace.hosting.server import Clock, Host, Server
from fedpace.hosting.shared_model import ArraysValidation
from fedpace.trust.limits import CLIP, WEIGHT_RATE
from fedpace.trust.robust import RobustRule

log = logging.getLogger("flwr")

WAITING = "waiting for nodes and names"
"""What the first seconds are spent on."""
REMEDIES = {
    Need.MOMENT: "add report_mod(module=...) to the mods of its ClientApp",
    Need.LOSS: "put train_loss into the metrics of its reply",
    Need.LABELS: "give report_mod labels=",
}


class Federation:
    """The settings of `PacedStrategy` and `PacedServer`.

    Args:
        selector: a scheme's name, a Selector, or a Policy. Clients that do not report what it needs are still asked, a
            quota per round as in a warm-up, and each is named in a warning.
        state: folder where every round is saved and recorded (`fedpace report` and `fedpace watch` read it), and from
            which a restarted server goes on; None = nowhere.
        seed, warmup, warmup_quota, warmup_wait, warmup_trains, moments_every: as of `fedpace.Settings`.
        shares: as there; `samples` are what `report_mod(samples=...)` or `labels=` tell before a node first trains.
        clock: `server`: time is this machine's, from sending a message to seeing its reply. `reported`: time is what
            clients report, as with delay models in a simulation, and nobody really waits.
        deadline: seconds that a cohort is waited for, whatever the scheme says; never with empty hands while somebody
            may still answer.
        loss_key: metric with the client's training loss; empty = train_loss, train-loss or loss.
        sketch: entries of an update's sketch, for schemes that compare updates.
        trust: bound the influence of each client, see docs/trust.md. A restarted server may be given another.
        clip: clip updates longer than this many times the reference length of the fleet; 0 = never.
        weight_rate: most weight of one client over time, as a multiple of its share of the objective; 0 = any.
        robust: a Byzantine-robust rule in place of the weighted mean, or its name; see docs/trust.md.
        validation: trains a model, given as named arrays, on the server's own data and returns it likewise; for the
            robust rules `fltrust` and `zeno`.
        forget_seconds: clients that were not connected for so long are forgotten; those without a name after 600 s.
        eligible: names of the clients that may be chosen, or a function that says of a name whether it may, asked anew
            in every round; None = everybody.
        bind_names: a name belongs to the node id that first gave it, for good. Switch it on where the SuperLink
            authenticates SuperNodes, whose ids then stay; elsewhere a node that reconnects has another id.
        name_seconds: how long a new node may take to say its name; 0 = call nodes by their ids.
        nodes_seconds: how long to wait at first for as many nodes as the scheme chooses. Then it goes on with those
            that are there, if they are enough at all; else it gives up.
        server: the server step: a rule, or the name of one; None = what the scheme asks for.
        weight_key, array_key, config_key: what messages call the number of samples, the model and the configuration.
        options: of the scheme, where it is given by name; one that is called as an argument above needs a Selector.
    """

    def __init__(
        self,
        selector: str | Selector[Any] | Policy[Any],
        *,
        state: str | Path | None = None,
        seed: int = 0,
        shares: ShareRule = "uniform",
        warmup: Warmup = "lazy",
        warmup_quota: int = 5,
        warmup_wait: float = 1.0,
        warmup_trains: bool = True,
        clock: Clock = "server",
        deadline: float = math.inf,
        loss_key: str = "",
        moments_every: int = 1,
        sketch: int = 256,
        trust: bool = True,
        clip: float = CLIP,
        weight_rate: float = WEIGHT_RATE,
        robust: str | RobustRule | None = None,
        validation: ArraysValidation | None = None,
        forget_seconds: float = FORGET,
        eligible: Eligible = None,
        bind_names: bool = False,
        name_seconds: float = 120.0,
        nodes_seconds: float = 600.0,
        server: str | ServerStep[Any] | None = None,
        weight_key: str = "num-examples",
        array_key: str = "arrays",
        config_key: str = "config",
        **options: Any,
    ) -> None:
        at_least(nodes_seconds, 0, "nodes_seconds")
        self._scheme: Any = make_selector(selector, options, inspect.signature(Federation).parameters)
        settings = Settings(
            seed=seed,
            shares=shares,
            warmup=warmup,
            warmup_quota=warmup_quota,
            warmup_wait=warmup_wait,
            warmup_trains=warmup_trains,
            deadline=deadline,
            moments_every=moments_every,
            trust=trust,
            clip=clip,
            weight_rate=weight_rate,
        )
        self._nodes_seconds = nodes_seconds
        self._eligible = eligibility(eligible)
        self._weight_key, self._array_key, self._config_key = weight_key, array_key, config_key
        self._server = Server(
            self._scheme,
            settings,
            Host("flower", log, REMEDIES),
            clock=clock,
            folder=None if state is None else Path(state),
            rule=make_server(server),
            robust=robust,
            validation=validation,
            sketch=sketch,
            loss_key=loss_key,
            forget_seconds=forget_seconds,
        )
        saved = self._server.saved
        self._arrays = None if saved is None else record(saved.model)
        """The current model."""
        questions = {ASK_LABELS: Need.LABELS in self.coordinator.wanted, ASK_SAMPLES: shares == "samples"}
        owners = {} if saved is None else {str(name): int(node) for name, node in saved.facts.get("names", {}).items()}
        self._roster = Roster(name_seconds, config_key, questions, owners if bind_names else None)
        self._messages = Messages(weight_key, (sketch, seed))

    @property
    def coordinator(self) -> Coordinator:
        """The memory of the selection: who is there, and what is known of whom."""
        return self._server.coordinator

    def close(self) -> None:
        """End the sitting where not `start` but a loop of one's own called the rounds."""
        self._server.files.close()

    def _wait_for_nodes(self, grid: Grid, least: int = 1) -> None:
        """Wait until as many nodes are connected as the scheme chooses; `least` are enough."""
        scheme = self._scheme
        with self._server.watch(WAITING):
            wait_for_nodes(grid, scheme.fixed_k or 1, least, seconds=self._nodes_seconds, scheme=scheme.name)

    def _present(self, grid: Grid, nodes: Iterable[int] | None = None) -> dict[str, int]:
        """Return those of the nodes, by default all that are connected, that may be chosen, by name; newcomers join."""
        with self._server.watch("looking for nodes" if self._roster.notes else WAITING):
            named = self._roster.names(connected(grid) if nodes is None else nodes, grid)
        allowed = {name: node for name, node in named.items() if self._eligible(name)}
        self._server.presence.update({name: self._roster.notes[name] for name in allowed})
        return {name: node for name, node in allowed.items() if name in self.coordinator.ledger}
