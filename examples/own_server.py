"""A federation over plain sockets: the Coordinator decides, and these lines carry its tasks and bring answers back.

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
import socket
import threading
import time
from pathlib import Path

import numpy as np

import fedpace


def client(port: int, name: str) -> None:
    """Fit a line to data of one's own for as long as the server sends models."""
    rng = np.random.default_rng(int(name))
    inputs = rng.normal(size=(30, 3))
    targets = inputs @ [1.0, -2.0, 0.5] + rng.normal(scale=0.1, size=30)
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
        print(name, file=lines, flush=True)
        for line in lines:
            task = json.loads(line)
            weights = np.array(task["weights"])
            loss = float(np.mean((inputs @ weights - targets) ** 2))
            for _ in range(5):
                weights -= 0.05 * inputs.T @ (inputs @ weights - targets) / len(inputs)
            answer = {"task": task["id"], "weights": weights.tolist(), "loss": loss}
            print(json.dumps(answer), file=lines, flush=True)


def listen(name: str, lines, inbox: queue.Queue) -> None:
    """Put a client's answers into the inbox, and None when it hangs up."""
    with lines, contextlib.suppress(OSError):
        for line in lines:
            inbox.put((name, json.loads(line)))
    inbox.put((name, None))


def serve(listener: socket.socket, clients: int, folder: Path, rounds: int, crash_after: int = 0) -> np.ndarray:
    """Train until `rounds` steps are made, with what `folder` remembers of earlier sittings; return the model."""
    restored = (folder / "session.json").exists()
    if restored:
        coordinator = fedpace.Coordinator.restore(folder)
        coordinator.abandon()  # tasks that were in flight died with their connections
    else:
        coordinator = fedpace.Coordinator(fedpace.make_selector("random", k=3), fedpace.Settings(seed=1))
    weights = np.load(folder / f"model-{coordinator.step}.npy") if restored else np.zeros(3)
    model = fedpace.SharedModel({"weights": weights}, fedpace.make_server("average"))
    inbox: queue.Queue = queue.Queue()
    links, tasks, trained = {}, {}, {}
    sockets = [listener.accept()[0] for _ in range(clients)]
    for link in sockets:
        lines = link.makefile("rw")
        name = lines.readline().strip()
        links[name] = lines
        threading.Thread(target=listen, args=(name, lines, inbox), daemon=True).start()
    coordinator.join([name for name in sorted(links) if name not in coordinator.clients])
    began = time.monotonic() - coordinator.now
    while coordinator.step < rounds:
        due = coordinator.due(time.monotonic() - began, links)
        if due.step is not None:
            model.step([(weight, trained.pop(task.id)) for task, weight in due.step.answers], due.step.mode)
            if due.step.number == crash_after:
                os._exit(1)  # as a power cut would: the step is made, and nobody knows
            coordinator.stepped(time.monotonic() - began)
            np.save(folder / f"model-{coordinator.step}.npy", model.arrays["weights"])
            coordinator.save(folder)  # names the step, and so the model: the one write that counts
        for task in due.tasks:
            tasks[task.id] = task
            order = {"id": task.id, "weights": model.arrays["weights"].tolist()}
            print(json.dumps(order), file=links[task.client], flush=True)
        if due:
            continue
        patience = coordinator.wake_at - (time.monotonic() - began)
        try:
            name, answer = inbox.get(timeout=None if math.isinf(patience) else max(0.0, patience))
        except queue.Empty:
            continue
        now = time.monotonic() - began
        if answer is None:
            del links[name]
            for task in coordinator.tasks:
                if task.client == name:
                    coordinator.lost(task.id, now)
        else:
            task = tasks.pop(answer["task"])
            trained[task.id] = {"weights": np.array(answer["weights"])}
            outcome = fedpace.Outcome(name, seconds=now - task.began, loss=answer["loss"])
            coordinator.receive(task.id, outcome, now)
    for link in sockets:
        with contextlib.suppress(OSError):  # one that has hung up already
            link.shutdown(socket.SHUT_RDWR)
        link.close()
    return model.arrays["weights"]


def main() -> None:
    """Start the clients as processes, and serve them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
        weights = serve(listener, asked.clients, asked.folder, asked.rounds, asked.crash_after)
    print(json.dumps({"rounds": asked.rounds, "weights": weights.tolist()}))


if __name__ == "__main__":
    main()
