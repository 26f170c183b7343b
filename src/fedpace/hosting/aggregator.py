"""A trusted aggregator: a process of its own that opens sealed updates, and releases only sums over groups of clients.

    fedpace aggregator keys --listen 127.0.0.1:9470 --minimum 8

Three parties take part, each with a file of keys from the folder `keys`:

- A **client** (`PrivateClient`, `client.json`) seals its update for the aggregator. The sealed bytes travel in its
  ordinary answer, so clients need no connection to the aggregator. It keeps its last updates: for `pace-async` it sends
  the newest opened one again if the aggregator has no room for it.
- The **server** (`TrustedAggregator`, `server.json`) holds sealed bytes that it cannot open. It asks for the sum over a
  group, as it asks any `fedpace.Opener`.
- The **aggregator** (`AggregatorProcess`, `aggregator.json`) opens the group's updates, adds them up, adds noise if it
  was told to, and sends the sums. For `pace-async` it keeps the newest update of some clients (`CACHED`), in memory
  only.

The aggregator does not trust the server. It counts clients by the names inside the sealed answers, opens each answer
once, refuses a sum in which one client has more than half of the weight, and checks by itself that no combination of
its sums is about one client alone (`fedpace.core.exposure`). A sealed answer is bound to one start of the aggregator:
after a restart, answers that were under way are refused, and so is memory from before it.

Whoever operates the aggregator's machine can read the updates, unless it runs in an enclave that keeps its operator out
(confidential computing). Clients share one secret: a client can pretend to be another, but the server cannot pretend to
be a client.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fedpace._base.checks import FloatArray, above
from fedpace._base.codec import decode_id, encode_id
from fedpace._base.errors import FedpaceError, InputError, MissingExtraError
from fedpace._base.files import json_bytes, read_json, write_atomically
from fedpace.core.budget import PrivacyBudget, clipped
from fedpace.core.exposure import Exposure
from fedpace.core.privacy import TrainingPrivacy
from fedpace.core.server_rule import Vector
from fedpace.core.settings import MINIMUM
from fedpace.core.sums import UPDATE, Group, GroupSum, Member, Sums, add_up, weighted_contribution, with_training
from fedpace.core.tasks import Task
from fedpace.core.types import ClientId
from fedpace.server._own_memory import OwnMemory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

log = logging.getLogger("fedpace.aggregator")

LARGEST_MESSAGE = 1 << 32
"""Most bytes of a message."""
LARGEST_PART = 0.5
"""Largest part of the weight that one client may have in a sum."""
CACHED = 256
"""Clients whose newest opened update the aggregator keeps, for their answers that are already under way."""
PENDING = 8
"""Own answers that a client keeps until it hears that they were opened."""
SOCKET_SECONDS = 60.0
"""Longest wait for the other end of a connection."""
PATIENCE = 600.0
"""Seconds for which the server tries to reach the aggregator."""
NOTHING = OwnMemory()


# -- keys and messages -------------------------------------------------------------------------------------------------


def make_keys(folder: Path) -> Path:
    """Write the keys of the three parties into `folder`, unless they are there, and return the aggregator's file."""
    own = folder / "aggregator.json"
    if own.exists():
        return own
    private = _x25519().X25519PrivateKey.generate()
    public, client, server = private.public_key().public_bytes_raw().hex(), secrets.token_hex(32), secrets.token_hex(32)
    files = {
        "client.json": {"public": public, "client": client},
        "server.json": {"server": server},
        "aggregator.json": {"private": private.private_bytes_raw().hex(), "client": client, "server": server},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, keys in files.items():
        write_atomically(folder / name, json_bytes(keys))
        (folder / name).chmod(0o600)
    return own


def _key(path: str | Path, name: str) -> bytes:
    found = read_json(Path(path))
    try:
        key = bytes.fromhex(found[name])
    except (KeyError, TypeError, ValueError) as cause:
        raise InputError(
            f"{path} should hold the key {name!r} as 64 hexadecimal digits: use the file that `fedpace aggregator` "
            "wrote for this party"
        ) from cause
    if len(key) != 32:
        raise InputError(f"the key {name!r} in {path} should have 32 bytes, but it has {len(key)}")
    return key


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ModuleNotFoundError as cause:
        raise MissingExtraError("a trusted aggregator", "privacy", "cryptography") from cause
    return x25519


def _cipher(secret: bytes, salt: bytes, purpose: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return ChaCha20Poly1305(HKDF(SHA256(), 32, salt, b"fedpace " + purpose).derive(secret))


def _encrypted(cipher: Any, content: bytes, context: bytes) -> bytes:
    nonce = secrets.token_bytes(12)
    return nonce + bytes(cipher.encrypt(nonce, content, context))


def _decrypted(cipher: Any, content: bytes, context: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(cipher.decrypt(content[:12], content[12:], context))
    except (InvalidTag, ValueError) as cause:
        raise InputError("a message cannot be opened: it was changed, or made with other keys") from cause


def seal(content: bytes, public: X25519PublicKey, secret: bytes) -> bytes:
    """Return content that only the holder of the private key can read, and only a holder of `secret` can have made."""
    own = _x25519().X25519PrivateKey.generate()
    sent: bytes = own.public_key().public_bytes_raw()
    return sent + _encrypted(_cipher(own.exchange(public), secret, b"update"), content, sent)


def unseal(sealed: bytes, private: X25519PrivateKey, secret: bytes) -> bytes:
    """Return what `seal` was given; raise InputError if the bytes were changed, or sealed with other keys."""
    if len(sealed) < 60:
        raise InputError("a sealed update is too short")
    shared = private.exchange(_x25519().X25519PublicKey.from_public_bytes(sealed[:32]))
    return _decrypted(_cipher(shared, secret, b"update"), sealed[32:], sealed[:32])


def pack(header: Mapping[str, Any], vectors: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None) -> bytes:
    """Return JSON values, vectors (in their own precision, single or double) and bytes as one message."""
    arrays = {name: np.ascontiguousarray(vector) for name, vector in vectors.items()}
    parts = {name: array.astype(array.dtype.newbyteorder("<")).tobytes() for name, array in arrays.items()}
    parts |= {f"blob {name}": blob for name, blob in (blobs or {}).items()}
    kinds = {name: array.dtype.str[-2:] for name, array in arrays.items()}
    table = [[name, len(part), kinds.get(name, "")] for name, part in parts.items()]
    text = json.dumps([header, table]).encode()
    return b"".join([struct.pack("<I", len(text)), text, *parts.values()])


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, bytes]]:
    """Return what `pack` was given; raise InputError if the bytes are not such a message."""
    try:
        at = 4 + struct.unpack_from("<I", message)[0]
        header, table = json.loads(message[4:at])
        vectors: dict[str, NDArray[Any]] = {}
        blobs: dict[str, bytes] = {}
        for name, size, kind in table:
            part = message[at : (at := at + int(size))]
            if len(part) != size:
                raise ValueError("a part is cut off")
            if kind:
                vectors[name] = np.frombuffer(part, dtype={"f4": "<f4", "f8": "<f8"}[kind])
            else:
                blobs[name.removeprefix("blob ")] = part
        return dict(header), vectors, blobs
    except (KeyError, TypeError, ValueError, struct.error) as cause:
        raise InputError(f"a message of another kind came: {cause}") from cause


# -- on the client -----------------------------------------------------------------------------------------------------


class PrivateClient:
    """Seals the updates of one client for the aggregator, and keeps its last updates, which are its memory.

    Args:
        keys: the file `client.json`.
        name: the client's name, as the server knows it.
        state: what `state` returned earlier; empty = the client has no memory yet.
    """

    def __init__(self, keys: str | Path, name: ClientId, state: bytes = b"") -> None:
        public, self._secret = _key(keys, "public"), _key(keys, "client")
        self._public = _x25519().X25519PublicKey.from_public_bytes(public)
        self.name = name
        self._sent: dict[int, NDArray[Any]] = {}
        """Version -> update that was trained from it; the newest that was opened, and later ones."""
        if state:
            self._sent = {int(version): update for version, update in unpack(state)[1].items()}

    @property
    def state(self) -> bytes:
        """The client's memory, to be kept on the client between tasks."""
        return pack({}, {str(version): update for version, update in self._sent.items()})

    def answer(
        self, parcel: bytes, update: Vector, *, loss: float = math.nan, buffers: FloatArray | None = None
    ) -> bytes:
        """Return the sealed answer to a task.

        Args:
            parcel: what `TrustedAggregator.parcel` put into the task.
            update: the trained parameters minus the received ones, as one vector.
            loss: the training loss; NaN = do not tell it.
            buffers: arrays beside the parameters, such as statistics of a batch norm, as one vector.
        """
        told = unpack(parcel)[0]
        sent = np.asarray(update, dtype=np.float32)
        if not np.isfinite(sent).all():
            raise InputError("the update is not finite: training diverged, and nothing is sent")
        vectors: dict[str, Any] = {"update": sent}
        if buffers is not None:
            vectors["buffers"] = np.asarray(buffers, dtype=np.float32)
        header = {name: told[name] for name in ("task", "version", "instance")}
        header |= {"client": encode_id(self.name), "loss": loss if math.isfinite(loss) else None}
        if told["memory"]:
            kept = {version: row for version, row in self._sent.items() if version >= told["opened"]}
            if told["resend"]:  # also those that may be opened before this answer
                vectors |= {f"old {version}": row for version, row in kept.items()}
            self._sent = {**dict(list(kept.items())[-PENDING:]), told["version"]: sent}
        return seal(pack(header, vectors), self._public, self._secret)


# -- on the server -----------------------------------------------------------------------------------------------------


class TrustedAggregator:
    """The server's connection to an aggregator; the `Opener` of `fedpace.SumAggregator`.

    Args:
        address: `host:port` of the aggregator.
        keys: the file `server.json`.
        patience: seconds for which to try to reach the aggregator, which may be restarting.
    """

    def __init__(self, address: str, keys: str | Path, *, patience: float = PATIENCE) -> None:
        above(patience, 0, "patience of TrustedAggregator")
        self._address, self._patience = split_address(address), patience
        self._cipher = _cipher(_key(keys, "server"), b"", b"server")
        self.instance = ""
        """The current start of the aggregator."""
        hello, _ = self._ask({"what": "hello"})
        self._known_instance = self.instance
        """The start of the aggregator that keeps the clients' memory."""
        self.minimum = int(hello["minimum"])
        """Fewest clients in a sum."""
        self.privacy = TrainingPrivacy(**hello["privacy"])
        """The noise that the aggregator adds."""
        self.memory = False
        """Whether clients keep a memory for the server rule; the host sets it."""
        self.spent: set[ClientId] = set()
        """Clients whose privacy budget is spent."""
        self.facts: dict[str, float] = {}
        """The largest epsilon spent, and how many clients are out of budget."""
        self._sealed: dict[int, bytes] = {}
        self._opened: dict[ClientId, int] = {}
        """Client -> version of its newest opened answer."""
        self._cached: set[ClientId] = set()
        """Clients whose newest opened update the aggregator has, so that they need not send it again."""
        self._references: dict[int, NDArray[Any]] = {}

    def parcel(self, task: Task) -> bytes:
        """Return what the client of a task needs to seal its answer; put it into the task's message."""
        header = {"task": task.id, "version": task.step, "instance": self.instance, "memory": self.memory}
        resend = task.client not in self._cached
        return pack({**header, "opened": self._opened.get(task.client, -1), "resend": resend}, {})

    def receive(self, task: int, sealed: bytes) -> None:
        """Take the sealed answer to a task."""
        self._sealed[task] = sealed

    def keep(self, tasks: Collection[int]) -> None:
        """Delete the answers to all other tasks."""
        self._sealed = {task: sealed for task, sealed in self._sealed.items() if task in tasks}

    def open(self, group: Group, minimum: int) -> GroupSum | None:
        """Return the sums over a group; None if too few clients are in it, or if it would tell about one client."""
        members = [[m.task, encode_id(m.client), m.version, m.share, m.weight] for m in group.members]
        header = {"what": "open", "kind": group.kind, "minimum": minimum, "members": members, "asks": list(group.asks)}
        blobs = {str(m.task): self._sealed[m.task] for m in group.members if m.task in self._sealed}
        rows = {version: np.asarray(row, dtype=np.float32) for version, row in group.references.items()}
        for member, ask in zip(group.members, group.asks, strict=True):
            if "old_version" in ask and member.client not in self._cached:
                version = int(ask["old_version"])
                rows |= {version: self._references[version]} if version in self._references else {}
        found, sums = self._ask(header, {str(version): row for version, row in rows.items()}, blobs)
        self.spent |= {decode_id(client) for client in found.get("spent", ())}
        self.facts = found.get("facts", {})
        if found.get("refused"):
            log.warning("fedpace: the aggregator did not open a sum of %d answers: %s", len(members), found["refused"])
            return None
        absent = frozenset(found["absent"])
        for member in group.members:
            if self.memory and member.task not in absent:
                self._opened[member.client] = member.version
                self._cached.add(member.client)
        self._references |= rows
        self._cached -= {decode_id(client) for client in found["evicted"]}
        return GroupSum(int(found["clients"]), sums, found["scalars"], absent)

    def publish(self, version: int, reference: Vector) -> None:
        """Send the reference of a model version to the aggregator."""
        row = np.asarray(reference, dtype=np.float32)
        wanted = set(self._opened.values())
        self._references = {each: kept for each, kept in self._references.items() if each in wanted} | {version: row}
        self._ask({"what": "publish", "version": version}, {"reference": row})

    @property
    def lost_memory(self) -> bool:
        """Whether the aggregator was restarted: it accepts no memory from before."""
        return self.memory and self._known_instance != self.instance

    def forget(self) -> None:
        """Let the aggregator forget all clients: their memory enters no other sum."""
        self._opened, self._cached, self._references = {}, set(), {}
        self._ask({"what": "forget"})
        self._known_instance = self.instance

    def saved(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what a restarted server needs to go on, as JSON and vectors."""
        opened = [[encode_id(client), version] for client, version in self._opened.items()]
        state = {"opened": opened, "cached": [encode_id(c) for c in self._cached], "instance": self._known_instance}
        return state, {f"reference {version}": row for version, row in self._references.items()}

    def load(self, saved: Mapping[str, Any], vectors: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `saved` returned."""
        self._opened = {decode_id(client): int(version) for client, version in saved["opened"]}
        self._cached, self._known_instance = {decode_id(c) for c in saved["cached"]}, str(saved["instance"])
        rows = {name.partition(" ")[2]: row for name, row in vectors.items() if name.startswith("reference ")}
        self._references = {int(version): np.asarray(row, dtype=np.float32) for version, row in rows.items()}

    def _ask(
        self,
        header: Mapping[str, Any],
        vectors: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a request and return the answer; try again while the aggregator cannot be reached."""
        request = secrets.token_hex(16)
        content = pack({**header, "request": request}, vectors or {}, blobs)
        until, said = time.monotonic() + self._patience, False
        while True:
            try:
                with socket.create_connection(self._address, timeout=SOCKET_SECONDS) as link:
                    _send(link, _encrypted(self._cipher, content, b"request"))
                    answer = _decrypted(self._cipher, _receive(link), f"answer {request}".encode())
                break
            except OSError as cause:
                place = f"{self._address[0]}:{self._address[1]}"
                if time.monotonic() > until:
                    raise InputError(
                        f"the aggregator at {place} cannot be reached ({cause}): start `fedpace aggregator` there"
                    ) from cause
                if not said:
                    log.warning("fedpace: the aggregator at %s cannot be reached (%s): trying again", place, cause)
                said = True
                time.sleep(0.2)
        found, sums, _ = unpack(answer)
        if "error" in found:
            raise InputError(f"the aggregator refused a request: {found['error']}")
        self.instance = str(found["instance"])
        return found, sums


def split_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"expected an address as host:port, but {text!r} came")
    return host, int(port)


def _send(link: socket.socket, content: bytes) -> None:
    link.sendall(struct.pack("<Q", len(content)) + content)


def _receive(link: socket.socket) -> bytes:
    size = struct.unpack("<Q", _exactly(link, 8))[0]
    if size > LARGEST_MESSAGE:
        raise ConnectionError(f"a message of {size} bytes is too large")
    return _exactly(link, size)


def _exactly(link: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = link.recv(min(size - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the other end hung up")
        found += part
    return bytes(found)


# -- the aggregator ----------------------------------------------------------------------------------------------------


class _Answer(NamedTuple):
    """A sealed answer after it was opened."""

    update: FloatArray
    memories: list[OwnMemory]
    """Of the client's earlier updates, if it sent them again."""
    loss: float
    buffers: FloatArray | None


class AggregatorProcess:
    """Opens sealed updates and answers the server with sums.

    Args:
        keys: folder with keys; they are made if there are none. Budgets of differential privacy are saved there.
        minimum: fewest clients in a sum, whatever the server asks for.
        privacy: noise and budgets; None = no noise.
        cached: clients whose newest update is kept here; others send it again with their next answer.
    """

    def __init__(
        self, keys: Path, minimum: int = MINIMUM, privacy: TrainingPrivacy | None = None, *, cached: int = CACHED
    ) -> None:
        own = make_keys(keys)
        self._private = _x25519().X25519PrivateKey.from_private_bytes(_key(own, "private"))
        self._secret = _key(own, "client")
        self._cipher = _cipher(_key(own, "server"), b"", b"server")
        if minimum < 2:
            raise InputError(f"a sum of fewer than 2 clients protects nobody, but minimum = {minimum} came")
        self.minimum, self.privacy = minimum, privacy or TrainingPrivacy("sums", minimum=minimum)
        self.instance, self._room = secrets.token_hex(16), cached
        self.exposure = Exposure()
        self._used: set[tuple[ClientId, int]] = set()
        """(Client, task) of answers that were opened."""
        self._recent: OrderedDict[ClientId, OwnMemory] = OrderedDict()
        """Client -> its memory after its newest opened answer, until it must make room."""
        self._remembered: set[tuple[ClientId, int]] = set()
        """(Client, version) of the answers that a memory may be made of: opened since the last `forget`."""
        self._replied = ("", b"")
        """The last request and the answer to it: a server that lost the answer asks again."""
        self._budget = PrivacyBudget(self.privacy) if self.privacy.epsilon else None
        self._file = keys / "budgets.json"
        if self._budget is not None and self._file.exists():
            self._budget.load(read_json(self._file), {})

    def serve(self, listener: socket.socket, *, until: Callable[[], bool] = lambda: False) -> None:
        """Answer requests, one after the other, until `until` returns True; it is asked every second."""
        listener.settimeout(1.0)
        while not until():
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            with link, suppress(OSError):
                link.settimeout(SOCKET_SECONDS)
                try:
                    request, answer = self.handle(_receive(link))
                except InputError as problem:  # made without the key: no answer
                    log.warning("fedpace: a request was ignored: %s", problem)
                    continue
                _send(link, _encrypted(self._cipher, answer, f"answer {request}".encode()))

    def handle(self, message: bytes) -> tuple[str, bytes]:
        """Return the id of a request and the answer to it; raise InputError if it is not from the server."""
        header, vectors, blobs = unpack(_decrypted(self._cipher, message, b"request"))
        request = str(header.get("request"))
        if request == self._replied[0]:
            return self._replied
        sums: Mapping[str, Any] = {}
        try:
            what = header.get("what")
            if what == "open":
                found, sums = self._open(header, vectors, blobs)
            elif what == "publish":
                reference = vectors["reference"].astype(np.float64)
                version = int(header["version"])
                for client, own in self._recent.items():
                    self._recent[client] = own.received(version, reference)
                found = {}
            elif what == "forget":
                self.exposure.clear()
                self._recent.clear()
                self._remembered.clear()
                found = {}
            elif what == "hello":
                found = {"minimum": self.minimum, "privacy": asdict(self.privacy)}
            else:
                found = {"error": f"{what!r} is no request"}
        except (FedpaceError, KeyError, TypeError, ValueError, AssertionError) as problem:
            found, sums = {"error": f"{type(problem).__name__}: {problem}"}, {}
        answer = pack(
            {**found, "instance": self.instance}, {name: np.asarray(v, np.float64) for name, v in sums.items()}
        )
        self._replied = (request, answer)
        return self._replied

    def _open(
        self, header: Mapping[str, Any], vectors: Mapping[str, NDArray[Any]], blobs: Mapping[str, bytes]
    ) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Return the sums over a group, or why it is not opened."""
        members = [Member(int(t), decode_id(c), int(v), float(s), float(w)) for t, c, v, s, w in header["members"]]
        asks = [{str(name): float(value) for name, value in ask.items()} for ask in header["asks"]]
        references = {int(version): row.astype(np.float64) for version, row in vectors.items()}
        kept: list[tuple[Member, dict[str, float], Sums]] = []
        held: dict[ClientId, OwnMemory] = {}
        absent: dict[int, str] = {}
        for member, ask in zip(members, asks, strict=True):
            try:
                answer = self._unsealed(member, blobs.get(str(member.task), b""), references)
                kept.append((member, ask, self._contribution(header["kind"], member, ask, answer, references, held)))
            except InputError as problem:
                absent[member.task] = str(problem)
        found: dict[str, Any] = {"absent": list(absent)}
        if self._budget is not None:
            found["spent"] = [encode_id(m.client) for m in members if not self._budget.affordable(m.client)]
            found["facts"] = self._budget.facts(self._budget.spent)
        group = Group(header["kind"], tuple(m for m, _, _ in kept), tuple(ask for _, ask, _ in kept))
        minimum = max(self.minimum, int(header["minimum"]))
        after = self.exposure.after([group])
        if group.clients < minimum:
            why = next(iter(absent.values()), "the group is too small")
            found["refused"] = f"a sum needs at least {minimum} clients, but {group.clients} are left ({why})"
        elif (part := _largest_part(group)) > LARGEST_PART:
            found["refused"] = f"one client has {part:.2f} of the weight, and at most {LARGEST_PART} is allowed"
        elif exposed := after.clients():
            found["refused"] = f"together with earlier sums it would tell about {len(exposed)} clients alone"
        if "refused" in found:
            return found, {}
        sums, scalars = add_up(own for _, _, own in kept)
        if self._budget is not None:
            sums, scalars = {UPDATE: self._budget.release(sums[UPDATE], group.members, secret_normal)}, {}
            write_atomically(self._file, json_bytes(self._budget.saved()[0]))  # before anything leaves this process
            found["facts"] = self._budget.facts(self._budget.spent)
        self.exposure = after if self._budget is None else self.exposure
        self._used |= {(member.client, member.task) for member in group.members}
        for client, own in held.items():
            self._remembered.add((client, own.version))
            self._recent[client] = own
            self._recent.move_to_end(client)
        evicted = [encode_id(self._recent.popitem(last=False)[0]) for _ in range(len(self._recent) - self._room)]
        return {**found, "clients": group.clients, "scalars": scalars, "evicted": evicted}, sums

    def _unsealed(self, member: Member, sealed: bytes, references: Mapping[int, FloatArray]) -> _Answer:
        """Return a member's answer; raise InputError if it is not this client's answer to this task, or was opened."""
        header, vectors, _ = unpack(unseal(sealed, self._private, self._secret))
        if (decode_id(header["client"]), header["task"], header["version"]) != (
            member.client,
            member.task,
            member.version,
        ):
            raise InputError("the sealed answer belongs to another client or task")
        if header["instance"] != self.instance:
            raise InputError("the answer was sealed for an earlier start of the aggregator")
        if (member.client, member.task) in self._used:
            raise InputError("the answer was opened before")
        if self._budget is not None and not self._budget.affordable(member.client):
            raise InputError("the privacy budget of the client is spent")
        wide = {name: vector.astype(np.float64) for name, vector in vectors.items()}
        if not all(np.isfinite(vector).all() for vector in wide.values()):
            raise InputError("the answer is not finite")
        old = {int(name[4:]): vector for name, vector in wide.items() if name.startswith("old ")}
        memories = [OwnMemory(row - references[v], None, v) for v, row in old.items() if v in references]
        loss = math.nan if header.get("loss") is None else float(header["loss"])
        return _Answer(wide["update"], memories, loss, wide.get("buffers"))

    def _contribution(
        self,
        kind: Any,
        member: Member,
        ask: Mapping[str, float],
        answer: _Answer,
        references: Mapping[int, FloatArray],
        held: dict[ClientId, OwnMemory],
    ) -> Sums:
        """Return what a client adds to the sums, and put its new memory into `held`."""
        if kind == "weighted":
            update = answer.update
            if self._budget is not None:
                return {UPDATE: ask["weight"] * clipped(update, self.privacy.clip)}, {}
            return with_training(
                weighted_contribution(update, ask["weight"]), member.weight, answer.loss, answer.buffers
            )
        if self._budget is not None:
            raise InputError("memory on the clients is not used with differential privacy")
        own = NOTHING
        if "old_version" in ask:
            known = (held.get(member.client), self._recent.get(member.client), *answer.memories)
            same = [m for m in known if m is not None and m.version == ask["old_version"] and m.offset is not None]
            if not same or (member.client not in held and (member.client, same[0].version) not in self._remembered):
                raise InputError("the client has lost its memory, or it is from before the clients were forgotten")
            own = same[0]
        found = own.contribution(kind, answer.update, member, ask, references.get(member.version))
        if found is None:
            raise InputError("the client has lost its memory")
        held[member.client] = found[2]
        return with_training(found[:2], member.weight, answer.loss, answer.buffers)


def _largest_part(group: Group) -> float:
    """Return the largest part that one client has in one of the sums of a group."""
    whole = Exposure()
    largest = 0.0
    for equation in whole.equations(group):
        weights: dict[ClientId, float] = {}
        for column, factor in equation.items():
            weights[whole.owners[column]] = weights.get(whole.owners[column], 0.0) + abs(factor)
        total = sum(weights.values())
        largest = max(largest, max(weights.values()) / total if total > 0 else 1.0)
    return largest


def secret_normal(size: int) -> FloatArray:
    """Return standard normal noise from the random numbers of the operating system."""
    whole = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    return np.asarray(special.ndtri((whole + 0.5) / 2.0**53), dtype=np.float64)
