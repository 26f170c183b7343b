"""Requests to readmit excluded clients: small files in a server's state folder, one per request.

`fedpace readmit` writes the requests, whether or not the server runs. The server processes them when it starts and once
per step. It deletes a request only after the changed state is saved, so a crash loses none.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpace._base.checks import did_you_mean
from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, keeping, read_json, write_atomically
from fedpace.core.coordinator import Coordinator
from fedpace.hosting.state_folder import INDEX, LOCK

PATTERN = "readmit-*.json"
"""File names of requests; unfinished files start with a dot."""


def request_readmission(folder: Path, clients: Sequence[str] = ()) -> Path:
    """Write a request to readmit clients into a server's state folder, and return its path.

    Args:
        folder: the server's state folder; the server need not run.
        clients: names of the clients; empty = all excluded clients.
    """
    if not any((folder / name).is_file() for name in (INDEX, LOCK)):
        found = "it holds no server's state" if folder.is_dir() else "there is no such folder"
        raise InputError(
            f"expected the state folder of a Flower or NVFlare server (state=), but {folder} came, and {found}; a "
            "program of your own calls Coordinator.readmit"
        )
    # The time keeps requests in order; the random part separates two requests of the same instant.
    path = folder / PATTERN.replace("*", f"{time.time_ns():020d}-{secrets.token_hex(4)}")
    with keeping(path):
        write_atomically(path, json_bytes({"clients": list(clients) or None}))
    return path


class Readmissions:
    """Processes the requests in a server's state folder.

    Args:
        folder: None = there are no requests.
        log: logger for the results.
    """

    def __init__(self, folder: Path | None, log: logging.Logger) -> None:
        self._folder, self._log = folder, log
        self._done: set[Path] = set()
        """Requests that are processed but not yet deleted."""

    def remedy(self, client: str) -> str:
        """Return the command or method that readmits a client, for log messages."""
        if self._folder is None:
            return "`Coordinator.readmit`"
        return f"`fedpace readmit {shlex.quote(str(self._folder))} {shlex.quote(client)}`"

    def carry_out(self, coordinator: Coordinator) -> None:
        """Process the requests that arrived since the last call."""
        if self._folder is None:
            return
        for path in sorted(set(self._folder.glob(PATTERN)) - self._done):
            self._done.add(path)
            try:
                wanted = _wanted(path)
            except InputError as problem:
                self._log.warning("fedpace: a request to readmit clients is ignored: %s", problem)
                continue
            self._readmit(coordinator, wanted)

    def saved(self) -> None:
        """Delete the processed requests; call it after the state is saved."""
        for path in self._done:
            with contextlib.suppress(OSError):  # this server ignores it from now on
                path.unlink(missing_ok=True)
        self._done = {path for path in self._done if path.exists()}

    def _readmit(self, coordinator: Coordinator, wanted: list[str] | None) -> None:
        if wanted is None:
            readmitted = coordinator.readmit()
            names = ", ".join(repr(client) for client in readmitted) or "nobody was excluded"
            self._log.info("fedpace: all clients are readmitted, as requested: %s", names)
            return
        known = {str(client): client for client in coordinator.clients}
        readmitted = coordinator.readmit([known[name] for name in wanted if name in known])
        for name in wanted:
            if name not in known:
                hint = did_you_mean(name, list(known))
                self._log.warning("fedpace: %r was to be readmitted, but there is no such client.%s", name, hint)
            elif known[name] in readmitted:
                self._log.info("fedpace: %r is readmitted, as requested", name)
            else:
                self._log.info("fedpace: %r was to be readmitted, but it was not excluded", name)


def _wanted(path: Path) -> list[str] | None:
    """Return the clients named in a request file; None = all clients."""
    content: Any = read_json(path)
    clients = content.get("clients") if isinstance(content, dict) else ""
    if clients is None and "clients" in content:
        return None
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        raise InputError(f"{path} must hold a list of names, or null, as `clients`")
    return list(dict.fromkeys(clients))
