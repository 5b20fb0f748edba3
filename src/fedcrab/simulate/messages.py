"""How the fleet and its workers talk: JSON, its length before it, descriptors of shared memory beside it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEAD = struct.Struct("!QI")  # bytes of the message, number of descriptors
MOST_DESCRIPTORS = 250  # a message carries at most these; the system allows 253

Message = dict[str, Any]


def send(channel: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message; descriptors travel with its head."""
    body = json.dumps(message).encode()
    head = HEAD.pack(len(body), len(descriptors))
    if descriptors:
        socket.send_fds(channel, [head], descriptors)
    else:
        channel.sendall(head)
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors; None when the other end is gone."""
    head, descriptors, _, _ = socket.recv_fds(channel, HEAD.size, MOST_DESCRIPTORS)
    rest = _exactly(channel, HEAD.size - len(head)) if head else None
    if rest is None:
        return None
    size, _ = HEAD.unpack(head + rest)
    body = _exactly(channel, size)
    return None if body is None else (json.loads(body), list(descriptors))


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < size:
        piece = channel.recv(min(size - len(pieces), 1 << 20))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)
