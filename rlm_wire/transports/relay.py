"""`relay:COMMAND` talks to a server through a command that only leads to it, and can be run again when it broke.

`relay:docker exec -i box rlm-worker attach --unix /run/rlm.sock`: the worker outlives the `docker exec`, and so do its
sessions. Where the command itself is the server, use `stdio:`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import Listener
from rlm_wire.transports.stdio import StdioTransport


class RelayTransport(StdioTransport):
    """Connects as `stdio:` does."""

    reconnects = True
    scheme = "relay"

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        raise TransportError(f"relay:{address} is for clients; serve where the relay leads, at unix:PATH say")
        yield  # which makes it a context manager


transport = RelayTransport()
