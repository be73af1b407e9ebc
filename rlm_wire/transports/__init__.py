"""Byte streams, and the registry of URL schemes. Importing this loads no transport, nor Trio, ssl or subprocess."""

from __future__ import annotations

import importlib
from typing import Final, cast

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import Buffer, ByteStream, Listener, Transport

__all__ = ["Buffer", "ByteStream", "Listener", "Transport", "transport_for"]

ENTRY_POINTS: Final = "rlm_wire.transports"

_BUILT_IN: Final = ("stdio", "relay", "tcp", "tls", "unix", "memory")
"""Modules of this package, each with a `transport`. Looked up first, so that no installed package can replace one."""


def transport_for(url: str) -> tuple[Transport, str]:
    """Split `url` into the transport that serves its scheme and the address that transport understands.

    Raises `TransportError` if the URL has no scheme, nobody serves it, or its third-party transport cannot be imported.
    """
    scheme, colon, address = url.partition(":")
    if not colon:
        raise TransportError(f"{url!r} is not a URL: start it with one of {_known_schemes()}")
    scheme = scheme.lower()
    address = address.removeprefix("//")
    if scheme in _BUILT_IN:
        return cast("Transport", importlib.import_module(f"{__name__}.{scheme}").transport), address
    return _third_party(scheme), address


def _third_party(scheme: str) -> Transport:
    from importlib.metadata import entry_points  # here: 15 ms that most programs never need

    for entry_point in entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            return cast("Transport", entry_point.load())
        except (ImportError, AttributeError) as error:
            raise TransportError(f"the transport {scheme!r} ({entry_point.value}) cannot be loaded: {error}") from error
    raise TransportError(f"no transport for {scheme!r}: known are {_known_schemes()}")


def _known_schemes() -> str:
    from importlib.metadata import entry_points  # here: as above

    installed = {entry_point.name for entry_point in entry_points(group=ENTRY_POINTS)}
    within_a_process = {"memory"}  # whoever mistypes a URL wants to reach another process
    built_in = [scheme for scheme in _BUILT_IN if scheme not in within_a_process]
    return ", ".join(f"{scheme}:" for scheme in [*built_in, *sorted(installed - {*_BUILT_IN})])
