"""Starts Flower's `flwr-clientapp` by forking a process that has imported everything.

A SuperNode starts a process per task, which imports Flower: 1.5 s of a core. On a fleet that is each node's own; where
many nodes share two cores, all would wait for it, and a benchmark would measure this machine. Worse, where other
programs keep the cores busy, a task whose process does not begin in time is started anew, beside the one that is still
importing: soon there are dozens, and no task ends. So a command of the same name, earlier on the PATH, hands its
arguments to this process, which forks. Messages, polling and heartbeats are Flower's own. The command lasts as long as
what was forked for it, and takes it along when it is killed, as a node that dies does.

    python flower_starter.py FOLDER [MODULE ...]       writes FOLDER/flwr-clientapp, and serves until it is killed
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

SHIM = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
printf '%s\\n' "$@" "" >&3
cat <&3 >/dev/null
"""
PATIENCE = 600
"""Seconds that importing everything may take."""


def start_quickly(federation: Any, *modules: str) -> None:
    """Have tasks forked, not started anew, in a federation of `examples/flower_digits/local.py`.

    Args:
        federation: whose nodes are not started yet.
        modules: what its clients import beside Flower and fedpace.
    """
    folder = federation.folder / "bin"
    starter = federation.start([sys.executable, str(Path(__file__).resolve()), str(folder), *modules], "starter")
    for _ in range(5 * PATIENCE):
        if (folder / "flwr-clientapp").exists():
            break
        if starter.poll() is not None:
            raise RuntimeError(f"tasks cannot be forked:\n{federation.output('starter')}")
        time.sleep(0.2)
    federation.environment["PATH"] = f"{folder}{os.pathsep}{federation.environment['PATH']}"


def main() -> None:
    """Fork a process per connection."""
    from flwr.supernode.cli import flwr_clientapp

    for name in ("flwr.clientapp", "numpy", "fedpace.flower", *sys.argv[2:]):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nobody need wait for children
    server = socket.create_server(("127.0.0.1", 0))
    command = Path(sys.argv[1]) / "flwr-clientapp"
    command.parent.mkdir(parents=True, exist_ok=True)
    written = command.with_name("written")
    written.write_text(SHIM.format(port=server.getsockname()[1]), encoding="utf-8")
    written.chmod(0o755)
    written.replace(command)
    while True:
        connection, _ = server.accept()
        if os.fork():
            connection.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        with connection.makefile(encoding="utf-8") as lines:
            sys.argv = ["flwr-clientapp", *iter(lambda: lines.readline().removesuffix("\n"), "")]
        threading.Thread(target=end_with, args=(connection,), daemon=True).start()
        try:
            flwr_clientapp()
        finally:
            os._exit(0)


def end_with(connection: socket.socket) -> None:
    """End this process when the command that asked for it does."""
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
