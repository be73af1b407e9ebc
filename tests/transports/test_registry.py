"""Which transport a URL gets, and what is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlm_wire.errors import TransportError
from rlm_wire.transports import transport_for

THIRD_PARTY = """
class Transport: ...
transport = Transport()
"""


def run(code: str, *path: Path) -> str:
    program = f"import sys; sys.path[:0] = {[str(each) for each in path]!r}\n{code}"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("tcp://127.0.0.1:1", "127.0.0.1:1"),
        ("TLS://[::1]:1", "[::1]:1"),
        ("unix:/run/x", "/run/x"),
        ("unix:///run/x", "/run/x"),
        ("memory:a", "a"),
        ("stdio:sh -c 'a:b'", "sh -c 'a:b'"),
        ("stdio:", ""),
    ],
)
def test_a_url_is_split_into_transport_and_address(url: str, address: str) -> None:
    assert transport_for(url)[1] == address


@pytest.mark.parametrize("url", ["quic://127.0.0.1:1", "127.0.0.1", "", ":"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(TransportError, match=r"stdio:, relay:, tcp:, tls:, unix:$"):
        transport_for(url)


def test_an_installed_entry_point_adds_a_scheme_but_replaces_no_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "pigeon.py").write_text(THIRD_PARTY)
    info = tmp_path / "pigeon-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1\n")
    points = "pigeon = pigeon:transport\ntcp = pigeon:transport\nbroken = missing_module:transport\n"
    (info / "entry_points.txt").write_text(f"[rlm_wire.transports]\n{points}")
    shown = run(
        "from rlm_wire.transports import transport_for\n"
        "for url in ('pigeon://roof', 'tcp://a:1', 'broken:', 'dove:'):\n"
        "    try: print(*(type(transport_for(url)[0]).__module__, transport_for(url)[1]))\n"
        "    except Exception as error: print(type(error).__name__, error)\n",
        tmp_path,
    ).splitlines()
    assert shown[0] == "pigeon roof"
    assert shown[1] == "rlm_wire.transports.tcp a:1"
    assert shown[2].startswith("TransportError the transport 'broken' (missing_module:transport) cannot be loaded")
    assert "unix:, broken:, pigeon:" in shown[3]


def test_importing_the_registry_loads_no_trio_ssl_or_subprocess() -> None:
    shown = run(
        "import rlm_wire.transports\n"
        "print(sorted({'trio', 'ssl', 'socket', 'subprocess', 'importlib.metadata'} & set(sys.modules)))"
    )
    assert shown == "[]\n"
