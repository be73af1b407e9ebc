"""The public names: all there, all lazy, none by accident."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rlm_wire

NAMES = [
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


def test_the_public_names_are_these() -> None:
    assert rlm_wire.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_the_thing_of_that_name(name: str) -> None:
    assert getattr(getattr(rlm_wire, name), "__name__", name).removeprefix("rlm_wire.") == name
    assert name in dir(rlm_wire)


@pytest.mark.parametrize("module", ["asyncio", "blocking", "testing"])
def test_a_module_of_the_library_is_found_without_importing_it_first(module: str) -> None:
    code = f"import rlm_wire; print(rlm_wire.{module}.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"rlm_wire.{module}\n"


def test_another_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="'rlm_wire' has no attribute 'Piers'"):
        rlm_wire.Piers  # noqa: B018


def test_the_package_says_that_it_is_typed() -> None:
    assert rlm_wire.__file__ is not None
    assert (Path(rlm_wire.__file__).parent / "py.typed").exists()
