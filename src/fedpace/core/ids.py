"""Conversion of client ids to JSON and back, without pickle.

Strings and integers are written as they are. Other supported types are tagged. An id that cannot be restored exactly
raises InputError.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from fedpace._base.errors import InputError
from fedpace.core.types import ClientId

LONGEST = 4096
"""Most bits of an integer id: Python limits the digits that it converts to text."""


def encode_id(client: ClientId) -> Any:
    """Return `client` as a JSON value."""
    if isinstance(client, np.integer):
        client = int(client)
    if isinstance(client, bool):
        return {"bool": client}
    if client is None:
        return {"none": True}
    if isinstance(client, int) or (isinstance(client, str) and is_text(client)):
        return client
    if isinstance(client, float):
        return {"float": client.hex()}
    if isinstance(client, bytes):
        return {"bytes": client.hex()}
    if isinstance(client, tuple):
        return {"tuple": [encode_id(part) for part in client]}
    found = "text that UTF-8 cannot hold" if isinstance(client, str) else f"a {type(client).__name__}"
    raise InputError(
        f"client {client!r} cannot be saved: ids are written as str, int, float, bytes, bool, None or tuples of "
        f"these, but this one is {found}; give the client a plain id"
    )


def check_id(client: ClientId) -> None:
    """Raise InputError for an id that differs from itself, such as NaN, or that has too many bits to be saved."""
    if client != client:
        raise InputError(f"a client id must be equal to itself, but {client!r} is not: give the client another")
    if isinstance(client, int) and client.bit_length() > LONGEST:
        raise InputError(f"a client id must have at most {LONGEST} bits, but one of {client.bit_length()} came")


def decode_id(value: Any) -> ClientId:
    """Return the client id that `encode_id` converted."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((tag, content),) = value.items()
        if tag == "bool" and isinstance(content, bool):
            return content
        if tag == "none":
            return None
        if tag == "tuple" and isinstance(content, list):
            return tuple(decode_id(part) for part in content)
        with contextlib.suppress(ValueError):
            if tag == "float" and isinstance(content, str):
                return float.fromhex(content)
            if tag == "bytes" and isinstance(content, str):
                return bytes.fromhex(content)
    raise InputError(f"{value!r} is not a saved client id")


def is_text(value: str) -> bool:
    """Return whether UTF-8 can encode the text; a file name with undecodable bytes, for example, cannot be saved."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
