"""Starts Flower's `flwr-clientapp` by forking a process that has imported everything.

A SuperNode starts a process per task, which imports Flower: 1.5 s of a core. On a fleet that is each node's own; where
twelve nodes share two cores, all would wait for it, and a benchmark would measure this machine. So a command of the
same name, earlier on the PATH, hands its arguments to this process, which forks. Messages, polling and heartbeats are
Flower's own.

    python flower_starter.py FOLDER            writes FOLDER/flwr-clientapp, and serves until it is killed
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

SHIM = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
printf '%s\\n' "$@" >&3
"""


def main() -> None:
    """Fork a process per connection."""
    import flwr.clientapp  # noqa: F401
    import numpy  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    import fedpace.flower  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nobody need wait for children
    server = socket.create_server(("127.0.0.1", 0))
    command = Path(sys.argv[1]) / "flwr-clientapp"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(SHIM.format(port=server.getsockname()[1]), encoding="utf-8")
    command.chmod(0o755)
    while True:
        connection, _ = server.accept()
        if os.fork():
            connection.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        with connection, connection.makefile(encoding="utf-8") as lines:
            sys.argv = ["flwr-clientapp", *(line.removesuffix("\n") for line in lines)]
        try:
            flwr_clientapp()
        finally:
            os._exit(0)


if __name__ == "__main__":
    main()
