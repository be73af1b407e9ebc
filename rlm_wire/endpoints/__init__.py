"""connect() and serve(): URL → transport → handshake → session. The only package that sees transports and broker."""

from __future__ import annotations

from rlm_wire.endpoints.client import connect
from rlm_wire.endpoints.server import Server, serve

__all__ = ["Server", "connect", "serve"]
