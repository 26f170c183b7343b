"""Writes TensorBoard event files without TensorBoard: scalars over rounds, with the virtual clock as wall time.

A file is a sequence of records (length, masked CRC, protobuf message, masked CRC). Only the message fields that scalars
need are written: Event{wall_time = 1, step = 2, file_version = 3, summary = 5}, Summary{value = 1}, Value{tag = 1,
simple_value = 2}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CASTAGNOLI = 0x82F63B78
VERSION = b"brain.Event:2"


def event_file(scalars: Iterable[tuple[str, int, float, float]]) -> bytes:
    """Return the bytes of a file of (tag, step, wall time, value)."""
    content = [_record(_double(1, 0.0) + _bytes(3, VERSION))]
    for tag, step, wall_time, value in scalars:
        entry = _bytes(1, tag.encode()) + _key(2, 5) + struct.pack("<f", value)
        content.append(_record(_double(1, wall_time) + _key(2, 0) + _varint(step) + _bytes(5, _bytes(1, entry))))
    return b"".join(content)


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked(length)) + message + struct.pack("<I", _masked(message))


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (CASTAGNOLI if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
