"""`compare` and `simulate`: run schemes on your own data and model from Python.

    results = fedpace.compare([(X, y), ...], test=(X, y), model=net, schemes=["random(k=5)", "pace"], target=0.9)
    print(results)

By default your own model is trained in this process, so a script needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits

from fedpace import runner
from fedpace._base.checks import at_least
from fedpace._base.errors import InputError
from fedpace.config import TRACK, Experiment, folder_name
from fedpace.core.privacy import TrainingPrivacy
from fedpace.data.arrays import Problem
from fedpace.data.federated import Better
from fedpace.delays.availability import Availability
from fedpace.models.custom import Functions
from fedpace.progress import RunProgress
from fedpace.records.run import Round, RunRecord, in_order
from fedpace.runner import Execution, Plan, PlanState, check_folder
from fedpace.sim import rounds as simulator
from fedpace.sim.clock import Clock
from fedpace.sim.engines import EngineName
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.fleet import Fleet
from fedpace.sim.stopping import Stop
from fedpace.sim.training import Training
from fedpace.study import arguments
from fedpace.study.results import Page, Results
from fedpace.tracking import make_trackers

__all__ = ["Page", "Results", "compare", "simulate"]


def compare(
    clients: Any = None,
    test: Any = None,
    model: Any = None,
    *,
    data: Any = None,
    schemes: Any = None,
    delays: Any = "lognormal",
    target: float | None = None,
    seeds: int | Sequence[int] = 3,
    rounds: int = 100,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    training: Training | None = None,
    device: str | None = None,
    precision: str | None = None,
    task: Problem | None = None,
    head: str | None = None,
    train: Any = None,
    loss: Any = None,
    metric: Any = None,
    better: Better = "higher",
    server: Any = None,
    robust: Any = None,
    validation: int = 0,
    privacy: TrainingPrivacy | None = None,
    track: Any = None,
    fleet: Fleet | None = None,
    availability: Availability | None = None,
    clock: Clock | None = None,
    stop: Stop | None = None,
    engine: EngineName | EngineOptions = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    name: str = "own data",
    progress: bool = True,
) -> Results:
    """Compare schemes on your own data and model under a virtual clock, and return the results.

    Args:
        clients: one pair (X, y) per client, as arrays, tensors or lists. Integer targets from 0 on and names are
            classes.
        test: the pair (X, y) on which the shared model is evaluated, or one pair per client.
        model: any `torch.nn.Module`, trained from its current weights; a class or function without arguments that
            returns one, called once per seed; or a model of fedpace, by name or as an object.
        data: a data set of fedpace, by name or as an object, instead of clients and test.
        schemes: names with or without options, such as `"random(k=5)"`, objects, or pairs (label, name or object); or
            one text with names separated by commas. None = random and pace; random selects ten clients, or half of the
            clients if there are fewer than 20.
        delays: a delay model, by name or as an object; or seconds, one per client or an array (rounds, clients).
        target: accuracy (or loss) to reach and hold; None = run all rounds and compare only the final results.
        seeds: the number of seeds, or a list of seeds.
        rounds: most rounds per run.
        epochs: epochs of local training (default 5).
        batch: samples per local step (default 32).
        lr: step size of local training (default 0.05).
        training: all options of local training, instead of `epochs`, `batch` and `lr`.
        device: where torch trains: `cpu` (default), `cuda`, `cuda:1`, `mps`, or `auto`, which takes a GPU if there is
            one.
        precision: of training on a GPU: `float32` (default), `bfloat16` or `float16`.
        task: `classification` or `regression`, if the type of the targets does not determine it.
        head: name of the layer whose inputs are the features for moments; None = the last linear layer.
        train: your own training loop: a function of the model, the client's data and its work that trains the model
            in place and returns the training loss (`fedpace.models.custom`).
        loss: a function of outputs and targets that returns the mean loss, in place of cross-entropy or half the
            squared error.
        metric: a function of the outputs and targets of the whole test data that returns a number; curves and the
            target are about it. None = accuracy, or loss for regression.
        better: whether `higher` or `lower` values of `metric` are better.
        server: server step of all schemes; None = the one that each scheme asks for.
        robust: robust rule that combines updates in place of the weighted mean, by name, with options as in
            `"trimmed-mean(fraction=0.3)"`, or as an object (`fedpace.make_robust`); None = the weighted mean.
        validation: number of the clients' samples that the server holds too; for `fltrust` and `zeno`.
        privacy: what the server sees of updates, and the noise that protects clients; None = it sees every update.
        track: experiment trackers that show every run while it goes on: `"mlflow"`, `"wandb"`, `"tensorboard"`,
            `"otel"`, with options as in `"mlflow(uri=http://host:5000)"`, or a list of them. A tracker that fails
            does not stop the training.
        fleet: options of the clients; by default a warm-up waits for a quarter of them.
        availability: options of the clients' absences.
        clock: what takes virtual time; by default also the warm-up.
        stop: limits of the runs, instead of `target` and `rounds`.
        engine: the engine that trains the clients; `auto` uses this process for your own model.
        out: folder for the runs; None = a temporary folder, which `Results.save` copies.
        resume: continue the runs in `out`, which must belong to the same comparison.
        overwrite: replace the runs in `out`.
        name: name of the comparison in its reports.
        progress: whether to show progress bars.
    """
    ground = arguments.ground(clients, test, data, model, task=task, head=head)
    ground = arguments.with_own(ground, Functions(train, loss, metric), better)
    at_least(rounds, 1, "rounds")
    chosen = _seeds(seeds)
    if schemes is None:
        schemes = [f"random(k={max(1, min(10, ground.data.build(seed=chosen[0]).clients // 2))})", "pace"]
    experiment = Experiment(
        name=folder_name(name, "name"),
        data=ground.data,
        model=ground.model,
        delays=arguments.delay_model(delays),
        schemes=arguments.schemes(schemes),
        seeds=chosen,
        training=arguments.on_device(
            arguments.training(training, epochs=epochs, batch=batch, lr=lr), device, precision
        ),
        fleet=arguments.instance(Fleet() if fleet is None else fleet, Fleet, "fleet"),
        availability=arguments.instance(availability, Availability, "availability"),
        clock=arguments.instance(Clock() if clock is None else clock, Clock, "clock"),
        stop=arguments.instance(Stop(target=target, max_rounds=rounds) if stop is None else stop, Stop, "stop"),
        server=arguments.server_step(server),
        robust=arguments.robust_rule(robust),
        validation=validation,
        privacy=arguments.instance(privacy, TrainingPrivacy, "privacy"),
        track=make_trackers(track),
    )
    _check_target(experiment)
    execution = Execution(arguments.engine_options(engine, ground.model), keep_model=None)
    plan = Plan.under([experiment])
    if out is not None:
        records = _run(plan, Path(out), execution, resume=resume, overwrite=overwrite, progress=progress)
        return Results(Path(out), in_order(records))
    if resume or overwrite:
        raise InputError("resume and overwrite are about the runs in a folder: name it with out=")
    folder = Path(tempfile.mkdtemp(prefix="fedpace-"))
    try:
        records = _run(plan, folder, execution, resume=False, overwrite=False, progress=progress)
        return Results(folder, in_order(records), temporary=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def simulate(
    data: Any = None,
    model: Any = None,
    delays: Any = "lognormal",
    selector: Any = "pace",
    *,
    clients: Any = None,
    test: Any = None,
    training: Training | None = None,
    device: str | None = None,
    precision: str | None = None,
    task: Problem | None = None,
    head: str | None = None,
    train: Any = None,
    loss: Any = None,
    metric: Any = None,
    better: Better = "higher",
    fleet: Fleet | None = None,
    availability: Availability | None = None,
    clock: Clock | None = None,
    engine: EngineName | EngineOptions | None = None,
    server: Any = None,
    robust: Any = None,
    validation: int = 0,
    privacy: TrainingPrivacy | None = None,
    seed: int = 0,
) -> Iterator[Round]:
    """Run a federation and yield its rounds without end.

    Pass a data set of fedpace as `data`, or `clients` and `test` as in `compare`. The other arguments are also those of
    `compare`. Data, initial model, delays and absences depend on `seed` alone, never on the selector, so runs with the
    same seed are paired. The configuration is checked before this returns.
    """
    ground = arguments.ground(clients, test, data, model, task=task, head=head)
    ground = arguments.with_own(ground, Functions(train, loss, metric), better)
    (scheme,) = arguments.schemes([selector])
    return simulator.simulate(
        ground.data,
        ground.model,
        arguments.delay_model(delays),
        scheme.selector,
        training=arguments.on_device(arguments.instance(training, Training, "training"), device, precision),
        fleet=arguments.instance(Fleet() if fleet is None else fleet, Fleet, "fleet"),
        availability=arguments.instance(availability, Availability, "availability"),
        clock=arguments.instance(Clock() if clock is None else clock, Clock, "clock"),
        engine=arguments.engine_options("auto" if engine is None else engine, ground.model),
        server=arguments.server_step(server),
        robust=arguments.robust_rule(robust),
        validation=validation,
        privacy=arguments.instance(privacy, TrainingPrivacy, "privacy"),
        seed=seed,
    )


def _run(
    plan: Plan, folder: Path, execution: Execution, *, resume: bool, overwrite: bool, progress: bool
) -> list[RunRecord]:
    with threadpool_limits(limits=1), RunProgress(plan.runs, Console(stderr=True), quiet=not progress) as bars:
        if resume:
            _check_same(plan, folder)
            return runner.resume(folder, bars.watch, bars.done, execution=execution, begun=PlanState.of(plan, folder))
        check_folder(folder, overwrite=overwrite, how="overwrite=True")
        return runner.run_plan(plan, folder, bars.watch, bars.done, execution=execution, overwrite=overwrite)


def _seeds(given: int | Sequence[int]) -> tuple[int, ...]:
    several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    seeds = tuple(range(given)) if isinstance(given, int) else tuple(given) if several else ()
    whole = all(isinstance(seed, Integral) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds must be a number of at least 1, or different whole numbers, but {given!r} came")
    return tuple(int(seed) for seed in seeds)


def _check_target(experiment: Experiment) -> None:
    target = experiment.stop.target
    if target is not None and experiment.data.metric == "accuracy" and not 0 < target <= 1:
        raise InputError(f"an accuracy to reach lies in (0, 1], but {target} came (92 % is 0.92)")


def _check_same(plan: Plan, folder: Path) -> None:
    """Raise if the runs in `folder` belong to another comparison."""
    saved = runner.planned(folder)
    if saved is None:
        raise InputError(f"there is nothing to resume in {folder}: leave resume out")
    before, now = saved.get("", {}), json.loads(json.dumps(plan.tables()[""]))
    for key in sorted({*before, *now} - {TRACK}):
        if before.get(key) != now.get(key):
            raise InputError(
                f"{folder} holds runs of another comparison, whose {key} differ ({before.get(key)}, and now "
                f"{now.get(key)}): give another folder"
            )
