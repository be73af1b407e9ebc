"""What is particular to TLS: who is trusted, what is bound to the certificate, what is said about other protocols."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from transports.streams import connected, receive, receive_all

from rlm_wire.errors import TransportError
from rlm_wire.transports import ByteStream, transport_for
from rlm_wire.transports.certificates import (
    self_made_server_context,
    server_context,
    unverifying_client_context,
    verifying_client_context,
)
from rlm_wire.transports.memory import memory_pair
from rlm_wire.transports.tls import TlsStream

TLS = "tls://127.0.0.1:0"


class Files:
    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.authority, self.server, self.client = (directory / name for name in ("ca.pem", "server.pem", "client.pem"))
        self.ca.cert_pem.write_to_path(self.authority)
        self.server_cert = self.ca.issue_cert("127.0.0.1")
        self.server_cert.private_key_and_cert_chain_pem.write_to_path(self.server)
        self.ca.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(self.client)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_both_ends_are_bound_to_the_server_certificate(files: Files) -> None:
    der = ssl.PEM_cert_to_DER_cert(files.server_cert.cert_chain_pems[0].bytes().decode())
    async with connected(TLS, server=server_context(files.server)) as (one, other):
        assert one.channel_binding == other.channel_binding == hashlib.sha256(der).digest()
        assert not one.private
        assert not other.private


async def test_each_self_made_certificate_is_another_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bindings = set()
    for _ in range(2):
        async with connected(TLS, server=self_made_server_context()) as (one, _):
            bindings.add(one.channel_binding)
    assert len(bindings) == 2
    assert list(tmp_path.iterdir()) == []


async def test_a_verifying_client_takes_its_authority_and_refuses_others(files: Files) -> None:
    client = verifying_client_context(authority=files.authority)
    async with connected(TLS, client=client, server=server_context(files.server)) as (one, other):
        await one.send([b"trusted"])
        assert await receive(other, 7) == b"trusted"
    assert "self-signed certificate" in await failure(client, self_made_server_context())
    elsewhere = trustme.CA().issue_cert("127.0.0.1")
    wrong = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    elsewhere.configure_cert(wrong)
    assert "unable to get local issuer certificate" in await failure(client, wrong)


async def test_a_server_with_a_client_authority_refuses_clients_without_a_certificate(files: Files) -> None:
    server = server_context(files.server, client_authority=files.authority)
    good = verifying_client_context(authority=files.authority, certificate=files.client)
    async with connected(TLS, client=good, server=server) as (one, other):
        await one.send([b"known"])
        assert await receive(other, 5) == b"known"
    client, other_end = ends(unverifying_client_context(), server)
    async with trio.open_nursery() as nursery:

        async def refuse() -> None:
            with pytest.raises(TransportError, match="peer did not return a certificate"):
                await other_end.handshake()

        nursery.start_soon(refuse)
        await client.handshake()  # TLS 1.3: the client is done before the server has looked at its certificate
        with pytest.raises(TransportError, match="certificate required"):
            await receive_all(client)


def ends(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[TlsStream, TlsStream]:
    one, other = memory_pair()
    return TlsStream(one, client, server_host="127.0.0.1"), TlsStream(other, server, server_digest=b"unused")


async def failure(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """What the client's handshake says."""
    one, other = ends(client, server)
    async with trio.open_nursery() as nursery:

        async def refused() -> None:
            with pytest.raises(TransportError, match="the peer refused: unknown ca"):
                await other.handshake()

        nursery.start_soon(refused)
        with pytest.raises(TransportError) as caught:
            await one.handshake()
    return str(caught.value)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a plain HTTP request"),
        (b"\x89RLMW\r\n\x1a", "plain rlm-wire, without TLS: use tcp://"),
        (b"SSH-2.0-x\r\n", "an SSH server or client"),
        (b"\x00\x01nonsense", r"something that is not TLS: it begins with b'\\x00\\x01nonsense'"),
    ],
)
@pytest.mark.parametrize("as_server", [True, False])
async def test_other_protocols_are_named_on_either_side(sent: bytes, named: str, as_server: bool) -> None:
    stranger, ours = memory_pair()
    if as_server:
        stream = TlsStream(ours, self_made_server_context(), server_digest=b"unused")
    else:
        stream = TlsStream(ours, unverifying_client_context(), server_host="127.0.0.1")
    await stranger.send([sent])
    with pytest.raises(TransportError, match=f"expected TLS and got {named}"):
        await stream.handshake()


async def test_a_peer_that_leaves_during_the_handshake_is_an_error() -> None:
    stranger, ours = memory_pair()
    await stranger.aclose()
    with pytest.raises(TransportError, match=r"closed during the TLS handshake|other side has closed"):
        await TlsStream(ours, unverifying_client_context(), server_host="127.0.0.1").handshake()


async def test_a_cut_without_goodbye_is_told_from_the_end() -> None:
    below, far = memory_pair()
    client = TlsStream(below, unverifying_client_context(), server_host="127.0.0.1")
    server = TlsStream(far, self_made_server_context(), server_digest=b"unused")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        await server.handshake()
    await far.aclose()
    with pytest.raises(TransportError, match="cut without a TLS goodbye"):
        await receive_all(client)


async def test_a_silent_client_does_not_hold_up_others() -> None:
    transport, address = transport_for(TLS)
    async with transport.listen(address) as listener:
        port = int(listener.urls[0].rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port):
            silent = await listener.accept()
            _, address = transport_for(listener.urls[0])
            async with transport.connect(address) as client:
                server = await listener.accept()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.handshake)
                    await server.handshake()
                    nursery.start_soon(server.aclose)
                    await client.aclose()
        await silent.aclose()


async def test_nothing_passes_before_the_handshake() -> None:
    one, _ = ends(unverifying_client_context(), self_made_server_context())
    use: tuple[ByteStream, ...] = (one,)
    for stream in use:
        with pytest.raises(trio.ClosedResourceError, match="handshake"):
            await stream.send([b"secret"])
        with pytest.raises(trio.ClosedResourceError, match="handshake"):
            await receive(stream, 1)


async def test_sends_that_overtake_the_stream_below_arrive_whole_and_in_order() -> None:
    """Encrypted records cannot be taken back, so a full stream below must not lose or double any."""
    one, other = ends(unverifying_client_context(), self_made_server_context())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.handshake)
        await other.handshake()
    total = os.urandom(1_000_000)
    at = 0
    while taken := one.send_nowait([memoryview(total)[at : at + 70_001]]):
        at += taken
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, [memoryview(total)[at:]])
        assert await receive(other, len(total)) == total


@pytest.mark.parametrize("make", [server_context, lambda path: verifying_client_context(authority=path)])
def test_unusable_certificate_files_are_errors_that_name_the_file(make: type, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"missing\.pem.*: No such file"):
        make(tmp_path / "missing.pem")
    (tmp_path / "bad.pem").write_text("not a certificate")
    with pytest.raises(TransportError, match=r"bad\.pem.*: not a PEM file"):
        make(tmp_path / "bad.pem")


async def test_a_context_without_a_certificate_cannot_listen() -> None:
    transport, address = transport_for(TLS)
    with pytest.raises(TransportError, match="this ssl_context cannot serve"):
        async with transport.listen(address, ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)):
            pass


def test_without_cryptography_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ImportError('not installed')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rlm_wire.transports.certificates import self_made_certificate\n"
        "try: self_made_certificate()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.startswith("TransportError")
    assert "pip install 'rlm-wire[tls]'" in shown
