"""A federation over plain sockets: the Coordinator decides, and this server sends its tasks and collects answers.

python examples/own_server.py runs/own --rounds 20 --crash-after 7     # dies after the 7th step, before it is saved
python examples/own_server.py runs/own --rounds 20                     # goes on with the 7th, to the same model
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import queue
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

import fedpace

Model = NDArray[np.float64]
Inbox = queue.Queue[tuple[str, Any]]
Tasks = dict[tuple[str, int], tuple[Any, dict[str, Any]]]
"""(Client, task id) -> the task and the model that was sent."""
Came = dict[int, tuple[dict[str, Any], dict[str, Any]]]
"""Task id -> the model that was sent and the model that came back."""

FIRST = np.zeros(3)
"""The model that training begins with."""
GREETING, DEADLINE = 10.0, 60.0
"""Seconds in which a client must say its name, and in which a round must end."""
SENDING = 10.0
"""Seconds in which a client must read a task."""
LONGEST = 1_000_000
"""Largest number of characters in an answer."""
HUNG_UP = object()
"""Marks the end of a connection in the inbox; None could be an answer."""


def client(port: int, name: str) -> None:
    """Fit a linear model to own data for as long as the server sends models."""
    rng = np.random.default_rng(int(name))
    inputs = rng.normal(size=(30, 3))
    targets = inputs @ [1.0, -2.0, 0.5] + rng.normal(scale=0.1, size=30)
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
        print(name, file=lines, flush=True)
        for line in lines:
            task = json.loads(line)
            weights = np.array(task["weights"])
            loss = float(np.mean((inputs @ weights - targets) ** 2))
            for _ in range(max(1, round(5 * task["work"]))):  # for schemes that say how much a client trains
                weights -= 0.05 * inputs.T @ (inputs @ weights - targets) / len(inputs)
            answer = {"task": task["id"], "weights": weights.tolist(), "loss": loss}
            print(json.dumps(answer), file=lines, flush=True)


def listen(name: str, lines: TextIO, inbox: Inbox) -> None:
    """Put the messages of a client into the inbox, and HUNG_UP when it ends or sends something other than JSON."""
    with contextlib.suppress(OSError, ValueError, RecursionError), lines:
        for line in iter(lambda: lines.readline(LONGEST), ""):
            inbox.put((name, json.loads(line)))
    inbox.put((name, HUNG_UP))


def send(link: socket.socket, order: dict[str, Any]) -> None:
    """Send a task; close the connection of a client that does not read it in time."""
    rest = memoryview(json.dumps(order).encode() + b"\n")
    until = time.monotonic() + SENDING
    with contextlib.suppress(OSError):  # it has hung up: the inbox says so
        while rest and (left := until - time.monotonic()) > 0:
            # Not settimeout: it would end the reading of `listen` as well.
            if select.select([], [link], [], left)[1]:
                rest = rest[link.send(rest, socket.MSG_DONTWAIT) :]
        if rest:
            link.shutdown(socket.SHUT_RDWR)


def admit(listener: socket.socket, clients: int, inbox: Inbox) -> dict[str, socket.socket]:
    """Return name -> connection, and listen to each; clients without a name of their own are disconnected."""
    links: dict[str, socket.socket] = {}
    for _ in range(clients):
        link, _ = listener.accept()
        link.settimeout(GREETING)
        lines = link.makefile()
        try:
            name = lines.readline(100).strip()
        except (OSError, ValueError):
            name = ""
        if not name or name in links:
            lines.close()
            link.close()
            continue
        link.settimeout(None)
        links[name] = link
        threading.Thread(target=listen, args=(name, lines, inbox), daemon=True).start()
    return links


def take(coordinator: fedpace.Coordinator, model: fedpace.SharedModel, step: Any, came: Came) -> None:
    """Make the next model from the answers of a step; long updates are clipped, and weights are capped."""
    pairs = {task.id: came.pop(task.id) for task, _ in step.answers}  # the model that was sent, and what came back
    sent, trained = ({task: pair[place] for task, pair in pairs.items()} for place in (0, 1))
    model.apply(coordinator, step, trained, sent)


def hear(coordinator: fedpace.Coordinator, name: str, answer: Any, tasks: Tasks, came: Came, now: float) -> None:
    """Record the answer of a client; if it does not answer its task, the client has failed."""
    try:
        task, sent = tasks.pop((name, answer["task"]))
        weights = np.array(answer["weights"], dtype=float)
        if weights.shape != FIRST.shape or not np.isfinite(weights).all():
            raise ValueError(f"expected {FIRST.size} finite numbers")
        outcome = fedpace.Outcome(name, seconds=now - task.began, loss=answer["loss"])
        if coordinator.receive(task.id, outcome, now):  # else nobody waits for it any more
            came[task.id] = (sent, {"weights": weights})
    except (KeyError, TypeError, ValueError, OverflowError, fedpace.FedpaceError) as cause:
        lose(coordinator, name, tasks, now, f"what it sent is no answer to its task ({type(cause).__name__}: {cause})")


def lose(coordinator: fedpace.Coordinator, name: str, tasks: Tasks, now: float, why: str) -> None:
    """Report the tasks of a client as lost."""
    for task in coordinator.tasks:
        if task.client == name:
            tasks.pop((name, task.id), None)
            coordinator.lost(task.id, now, why=why)


def serve(listener: socket.socket, clients: int, folder: Path, rounds: int, crash_after: int = 0) -> Model:
    """Train until `rounds` steps are made in total, continuing from the state in `folder`; return the model."""
    restored = (folder / "session.json").exists()
    if restored:
        coordinator = fedpace.Coordinator.restore(folder)
        coordinator.abandon()  # tasks that were in flight died with their connections
    else:
        settings = fedpace.Settings(seed=1, deadline=DEADLINE)
        offers = [fedpace.Need.DELAY, fedpace.Need.LOSS, fedpace.Need.WORK]
        coordinator = fedpace.Coordinator(fedpace.make_selector("random", k=3), settings, offers=offers)
    weights = np.load(folder / f"model-{coordinator.step}.npy") if restored else FIRST
    model = fedpace.SharedModel({"weights": weights}, fedpace.make_server("average"))
    inbox: Inbox = queue.Queue(maxsize=1000)
    tasks: Tasks = {}
    came: Came = {}
    links = admit(listener, clients, inbox)
    coordinator.join([name for name in sorted(links) if name not in coordinator.clients])
    began = time.monotonic() - coordinator.now
    while coordinator.step < rounds:
        due = coordinator.due(time.monotonic() - began, links)
        if due.step is not None:
            take(coordinator, model, due.step, came)
            if due.step.number == crash_after:
                os._exit(1)  # as a power cut would: the step is made, and nobody knows
            turn = coordinator.stepped(time.monotonic() - began)
            np.save(folder / f"model-{coordinator.step}.npy", model.arrays["weights"])
            coordinator.save(folder)  # names the step, and so the model: the one write that counts
            for name, why in turn.failures.items():
                print(f"step {coordinator.step}, client {name!r}: {why}", file=sys.stderr)
        for task in due.tasks:
            tasks[str(task.client), task.id] = (task, model.arrays)
            order = {"id": task.id, "weights": model.arrays["weights"].tolist(), "work": task.work}
            send(links[str(task.client)], order)
        if due:
            continue
        if not coordinator.tasks:
            raise fedpace.FedpaceError("there is nobody left to ask: all clients have hung up")
        patience = coordinator.wake_at - (time.monotonic() - began)
        try:
            name, answer = inbox.get(timeout=None if math.isinf(patience) else max(0.0, patience))
        except queue.Empty:
            continue
        now = time.monotonic() - began
        if answer is HUNG_UP:
            links.pop(name).close()
            lose(coordinator, name, tasks, now, "it has hung up, does not read, or sent what is no JSON")
        else:
            hear(coordinator, name, answer, tasks, came, now)
    for link in links.values():
        with contextlib.suppress(OSError):  # one that has hung up already
            link.shutdown(socket.SHUT_RDWR)
        link.close()
    return model.arrays["weights"]


def main() -> None:
    """Start the clients as processes, and serve them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--crash-after", type=int, default=0)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for name in range(asked.clients):
            multiprocessing.Process(target=client, args=(port, str(name)), daemon=True).start()
        try:
            weights = serve(listener, asked.clients, asked.folder, asked.rounds, asked.crash_after)
        except fedpace.FedpaceError as error:
            sys.exit(f"error: {error}")
    print(json.dumps({"rounds": asked.rounds, "weights": weights.tolist()}))


if __name__ == "__main__":
    main()
