"""Typed calls between two processes, both ways, over any byte stream.

    async with rlm_wire.connect(url, token=token) as peer:
        total = await peer.call(Add(1, 2))

Layers, each importing only those below: `endpoints` (connect, serve) → `broker` (Trio: calls, handlers) and
`transports` (bytes) → `methods` (the vocabulary) → `frames` (the protocol, pure) → `errors`. Importing this package
loads none of them: names are looked up when they are first used. So are the modules for others than Trio programs,
`rlm_wire.asyncio` and `rlm_wire.blocking`, and `rlm_wire.testing`.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name and take it for true; importing `typing` costs 15 ms
if TYPE_CHECKING:
    from rlm_wire.broker.calls import Call
    from rlm_wire.broker.incoming import IncomingCall
    from rlm_wire.broker.info import PeerInfo
    from rlm_wire.broker.patience import Patience
    from rlm_wire.broker.peer import Peer
    from rlm_wire.broker.scopes import Scopes, current_scope
    from rlm_wire.broker.services import Service
    from rlm_wire.endpoints import Server, connect, serve
    from rlm_wire.errors import (
        AuthenticationError,
        CallError,
        HandshakeError,
        LaunchError,
        LocalProtocolError,
        ProtocolError,
        RemoteProtocolError,
        SessionLost,
        TransportError,
        WireError,
    )
    from rlm_wire.frames.limits import Limits
    from rlm_wire.methods.base import Request, StreamRequest
    from rlm_wire.trace import Trace

__all__ = [
    "AuthenticationError",
    "Call",
    "CallError",
    "HandshakeError",
    "IncomingCall",
    "LaunchError",
    "Limits",
    "LocalProtocolError",
    "Patience",
    "Peer",
    "PeerInfo",
    "ProtocolError",
    "RemoteProtocolError",
    "Request",
    "Scopes",
    "Server",
    "Service",
    "SessionLost",
    "StreamRequest",
    "Trace",
    "TransportError",
    "WireError",
    "connect",
    "current_scope",
    "serve",
]

_HOME = {
    "Call": "broker.calls",
    "IncomingCall": "broker.incoming",
    "Limits": "frames.limits",
    "Patience": "broker.patience",
    "Peer": "broker.peer",
    "PeerInfo": "broker.info",
    "Request": "methods.base",
    "Scopes": "broker.scopes",
    "Server": "endpoints",
    "Service": "broker.services",
    "StreamRequest": "methods.base",
    "Trace": "trace",
    "connect": "endpoints",
    "current_scope": "broker.scopes",
    "serve": "endpoints",
}
_MODULES = ("asyncio", "blocking", "testing")


def __getattr__(name: str) -> object:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
