"""What worker and kernel host say to each other over their socketpair, and how it is framed.

Shared by both sides and without I/O policy of its own. A message is a 4-byte big-endian length and a msgpack Struct;
descriptors of a `Fork` (the kernel's wire, its output pipe, the file in which it notes its children) and of a `Forked`
(its pidfd) ride on the length bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

LENGTH_BYTES: Final = 4


class Fork(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Worker → host: fork a kernel. Carries three descriptors: wire, output pipe, file for its children."""


class Ready(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Host → worker: the shell is warm. Sent once, first."""


class Unusable(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Host → worker instead of `Ready`: no kernel will ever start here, and why."""

    reason: str


class Forked(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Host → worker: answers a `Fork`, in order. Carries the kernel's pidfd."""

    pid: int


class Refused(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Host → worker: answers a `Fork` that the system refused (memory, process limit)."""

    reason: str


class Exited(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Host → worker: a kernel has ended; `status` is its exit code, negative for a signal."""

    pid: int
    status: int


FromHost = Ready | Unusable | Forked | Refused | Exited

fork_decoder: Final = msgspec.msgpack.Decoder(Fork)
host_decoder: Final[msgspec.msgpack.Decoder[FromHost]] = msgspec.msgpack.Decoder(FromHost)


def encode(message: msgspec.Struct) -> bytes:
    """One message as it is sent: a few bytes, which a socket takes whole or not at all."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
