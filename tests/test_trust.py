"""Who gets in and who does not, with both sides whole: what docs/security.md claims and no part alone can show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import rlm_wire
from rlm_harness.callbacks import CellScopes, HarnessService, calling_agent
from rlm_wire.broker.scopes import current_scope
from rlm_wire.endpoints.meeting import REFUSAL_DELAY, agree
from rlm_wire.frames.codec import encode_handshake
from rlm_wire.frames.handshake import ClientHandshake, Established, Handshake, Resumption, ServerHandshake, Side
from rlm_wire.frames.limits import PREFACE, Limits
from rlm_wire.frames.schema import Hello
from rlm_wire.methods.ledger import LedgerChunk
from rlm_wire.transports import ByteStream, transport_for
from rlm_wire.transports.tcp import split_address
from rlm_worker.ledger import Replica

TOKEN = "the shared token of this test"
HELLO = encode_handshake(Hello([1], ["msgpack"], [], Limits(), b"n" * 32, "another user"))

AS_ANOTHER_USER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
stranger = socket.socket(socket.AF_UNIX)
stranger.connect("socket")
stranger.sendall(bytes.fromhex(sys.argv[2]))
stranger.shutdown(socket.SHUT_WR)
while received := stranger.recv(65536):
    os.write(1, received)
"""


class Mark(rlm_wire.Request[int], tag="trust.mark"):
    """Counts how often it was called."""


class Who(rlm_wire.Request[str], tag="trust.who"):
    pass


def marking() -> tuple[rlm_wire.Service, list[None]]:
    service, marks = rlm_wire.Service(), list[None]()

    @service.handle(Mark)
    def mark(request: Mark) -> int:
        marks.append(None)
        return len(marks)

    return service, marks


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_another_users_process_does_not_get_in_at_a_unix_socket_without_the_token(
    tmp_path: Path, token: str | None
) -> None:
    """The file's mode would keep it out as well: here it is taken away."""
    service, marks = marking()
    call = b"\x94\x10\x01\xaatrust.mark\x80"
    sent = PREFACE + b"".join(len(body).to_bytes(4, "big") + body for body in (HELLO, call))
    async with rlm_wire.serve(f"unix:{tmp_path}/socket", service, token):
        (tmp_path / "socket").chmod(0o666)
        tmp_path.chmod(0o755)
        command = [sys.executable, "-c", AS_ANOTHER_USER, str(tmp_path), sent.hex()]
        answer = (await trio.run_process(command, capture_stdout=True)).stdout
    assert answer.startswith(PREFACE)
    assert (b"takes only what its own user's processes connect" if token is None else b"[2,") in answer  # 2: Challenge
    assert marks == []


async def test_what_passed_over_tcp_shows_no_token_and_played_again_does_nothing() -> None:
    service, marks = marking()
    recorded = {"out": b"", "in": b""}

    async with rlm_wire.serve("tcp://127.0.0.1:0", service, TOKEN) as server, trio.open_nursery() as nursery:
        address = split_address(server.urls[0].removeprefix("tcp://"), scheme="tcp")

        async def listen_in(client: trio.SocketStream) -> None:
            async with client, await trio.open_tcp_stream(*address) as onward, trio.open_nursery() as both:
                both.start_soon(pass_on, client, onward, "out")
                both.start_soon(pass_on, onward, client, "in")

        async def pass_on(source: trio.SocketStream, sink: trio.SocketStream, direction: str) -> None:
            async for chunk in source:
                recorded[direction] += chunk
                await sink.send_all(chunk)
            await sink.send_eof()

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, listen_in, listeners)
        url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with rlm_wire.connect(url, token=TOKEN) as peer:
            assert await peer.call(Mark()) == 1
        async with await trio.open_tcp_stream(*address) as thief:
            await thief.send_all(recorded["out"])
            answer = b"".join([chunk async for chunk in thief])
        assert b"authentication failed" in answer
        assert recorded["out"].count(b"trust.mark") == 1
        assert len(marks) == 1
        for said in recorded.values():
            assert TOKEN.encode() not in said
        nursery.cancel_scope.cancel()


async def test_a_session_is_not_had_by_its_id_and_the_token_alone() -> None:
    service, _ = marking()
    async with (
        rlm_wire.serve("tcp://127.0.0.1:0", service, TOKEN) as server,
        rlm_wire.connect(server.urls[0], token=TOKEN) as peer,
    ):
        guessed = Established(1, "msgpack", Limits(), [], "a thief", peer.info.session, bytes(32))
        thief = Side("a thief", os.urandom(32), token=TOKEN.encode())
        wish = Resumption(guessed, received=0, attempt=1000)
        transport, address = transport_for(server.urls[0])
        with pytest.raises(rlm_wire.AuthenticationError):
            async with transport.connect(address) as stream:
                await agree(stream, lambda: ClientHandshake(thief, resume=wish), 5)
        assert await peer.call(Mark()) == 1
        assert peer.state == "connected"


async def test_a_wrong_token_is_answered_late(autojump_clock: MockClock) -> None:
    transport, address = transport_for("memory:strangers")

    async def shake(stream: ByteStream, begin: Callable[[], Handshake]) -> None:
        with pytest.raises(rlm_wire.AuthenticationError):
            await agree(stream, begin, 5)

    async with transport.listen(address) as listener, transport.connect(address) as far, trio.open_nursery() as nursery:
        near = await listener.accept()
        began = trio.current_time()
        server, client = Side("s", bytes(16), token=b"right"), Side("c", bytes(16), token=b"wrong")
        nursery.start_soon(shake, near, lambda: ServerHandshake(server, session="s"))
        await shake(far, lambda: ClientHandshake(client))
        assert trio.current_time() - began == REFUSAL_DELAY


async def test_what_the_harness_answers_its_worker_is_not_for_cells_nor_the_other_way_round() -> None:
    embedding, cells = rlm_wire.Service(), CellScopes()
    embedding.handle(Who)(lambda request: calling_agent())
    service = HarnessService(cells, embedding)
    service.handle(Mark)(lambda request: 1)

    async def refused(worker: rlm_wire.Peer, request: rlm_wire.Request[object], scope: str | None) -> str:
        current_scope.set(scope)
        with pytest.raises(rlm_wire.CallError) as caught:
            await worker.call(request)
        assert caught.value.code == "permission_denied"
        return caught.value.message

    async with rlm_wire.serve("memory:harness", service), rlm_wire.connect("memory:harness") as worker:
        with cells.open("an agent") as scope:
            assert "not for cells" in await refused(worker, Mark(), scope)
            assert "outside of a running cell" in await refused(worker, Who(), None)
            assert "outside of a running cell" in await refused(worker, Who(), "invented")
            current_scope.set(scope)
            assert await worker.call(Who()) == "an agent"
        assert "outside of a running cell" in await refused(worker, Who(), scope)


async def test_a_ledgers_replica_has_no_name_that_a_cell_could_open(tmp_path: Path) -> None:
    replica = Replica(str(tmp_path))
    await replica.append(LedgerChunk(0, b"a record\n"))
    assert list(tmp_path.iterdir()) == []
    replica.close()


HIDDEN = """
import sys
from rlm_harness.secrets import hide_process
if sys.argv[1] == "hide":
    hide_process()
sys.stdout.write("there")
sys.stdout.flush()
sys.stdin.read()
"""

WITHOUT_PRIVILEGE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE: root then is a user like another
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""

LOOK = """
import os, sys
place = f"/proc/{sys.argv[1]}"
def can(look):
    try:
        return look()
    except PermissionError:
        return False
print(
    can(lambda: b"sk-hidden" in open(f"{place}/environ", "rb").read()),
    can(lambda: bool(os.open(f"{place}/mem", os.O_RDONLY))),
    can(lambda: bool(os.readlink(f"{place}/fd/0"))),
)
"""


@pytest.mark.parametrize(("how", "seen"), [("hide", "False False False"), ("show", r"True \w+ True")])
async def test_a_harness_that_hides_is_closed_to_other_processes_of_its_user(how: str, seen: str) -> None:
    environment = os.environ | {"A_KEY": "sk-hidden"}
    command = [sys.executable, "-c", WITHOUT_PRIVILEGE, HIDDEN, how]
    harness = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    with harness:
        assert harness.stdout is not None
        assert await trio.to_thread.run_sync(harness.stdout.read, 5) == b"there"
        look = [sys.executable, "-c", WITHOUT_PRIVILEGE, LOOK, str(harness.pid)]
        told = (await trio.run_process(look, capture_stdout=True)).stdout.decode().strip()
        assert re.fullmatch(seen, told), told  # of what is open, some systems keep memory closed
