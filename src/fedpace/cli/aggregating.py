"""`fedpace aggregator`: the trusted process that opens sealed updates and releases only sums."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer


def aggregator(
    keys: Annotated[
        Path, typer.Argument(help="Folder of the keys; they are made if there are none: client.json, server.json.")
    ],
    listen: Annotated[str, typer.Option(help="Address to listen at, as host:port; port 0 = any free one.")] = (
        "127.0.0.1:9470"
    ),
    minimum: Annotated[int, typer.Option(help="Fewest clients in a sum, whatever the server asks for.")] = 8,
    dp: Annotated[
        str | None,
        typer.Option(help="Add noise to sums: KEY=VALUE,... such as epsilon=3,mechanism=ftrl."),
    ] = None,
    cached: Annotated[
        int, typer.Option(help="Clients whose last update is kept for pace-async; others send it again.")
    ] = 256,
    make_keys: Annotated[bool, typer.Option("--make-keys", help="Only write the keys.")] = False,
) -> None:
    """Run the trusted aggregator: it opens sealed updates and gives the server only sums (docs/privacy.md)."""
    from fedpace._base.registry import key_values
    from fedpace.config import build
    from fedpace.core.privacy import TrainingPrivacy
    from fedpace.hosting import aggregator as process

    own = process.make_keys(keys)
    if make_keys:
        typer.echo(f"keys: {own.parent}: give client.json to clients and server.json to the server, keep {own.name}")
        return
    options = {"aggregation": "sums", "minimum": minimum, **({} if dp is None else key_values(dp.split(","), "--dp"))}
    privacy = build(TrainingPrivacy, options, "--dp")
    one = process.AggregatorProcess(keys, minimum, privacy, cached=cached)
    with socket.create_server(process.split_address(listen)) as listener:
        host, port = listener.getsockname()[:2]
        typer.echo(f"aggregator at {host}:{port}: sums of at least {minimum} clients")
        one.serve(listener)
