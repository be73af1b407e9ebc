"""`rlm_wire.blocking`: calls from plain code, from several threads, interrupted, and after the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from facade_server import (
    TOKEN,
    Add,
    AskBack,
    Collect,
    Count,
    FacadeServer,
    HangUp,
    Name,
    Refuse,
    ScopeOf,
    Wait,
    facade_server,
)

import rlm_wire
import rlm_wire.blocking


@pytest.fixture
def server() -> Iterator[FacadeServer]:
    with facade_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "rlm_wire"]


def connect(server: FacadeServer, service: rlm_wire.Service | None = None) -> Any:
    return rlm_wire.blocking.connect(server.url.result(), service, TOKEN)


def test_a_call_returns_its_result_and_the_peer_says_who_it_is(server: FacadeServer) -> None:
    with connect(server) as peer:
        assert peer.call(Add(1, 2)) == 3
        assert peer.call(Add(1, 2), timeout=30) == 3
        assert peer.ping() > 0
        assert peer.info.features == ["facade"]
        assert "rlm-wire" in repr(peer)
        assert not peer.closed
    assert peer.closed


def test_the_error_of_a_call_arrives_whole(server: FacadeServer) -> None:
    with connect(server) as peer, pytest.raises(rlm_wire.CallError) as failure:
        peer.call(Refuse("not today"))
    assert (failure.value.code, failure.value.data, failure.value.retryable) == (
        "failed_precondition",
        {"why": "not today"},
        True,
    )


def test_items_come_in_order_and_then_the_result(server: FacadeServer) -> None:
    with connect(server) as peer, peer.open(Count(upto=5)) as call:
        assert list(call) == [1, 2, 3, 4, 5]
        assert call.result() == 5
        assert call.result() == 5


def test_items_are_sent_until_sending_is_closed(server: FacadeServer) -> None:
    with connect(server) as peer, peer.open(Collect()) as call:
        call.send(1)
        assert next(call) == 1
        call.send(2)
        call.close_sending()
        assert list(call) == [2]
        assert call.result() == [1, 2]


def test_a_cancelled_call_gives_what_it_had(server: FacadeServer) -> None:
    with connect(server) as peer, peer.open(Count(upto=3, linger=True)) as call:
        assert [next(call), next(call), next(call)] == [1, 2, 3]
        call.cancel("enough")
        assert call.result() == 3


def test_leaving_the_block_of_an_open_call_stops_it(server: FacadeServer) -> None:
    with connect(server) as peer:
        with peer.open(Count(upto=1, linger=True)) as call:
            next(call)
            assert server.next_event() == "lingering"
        assert server.next_event() == "counted"
        assert call.result() == 1
        assert peer.call(Add(1, 1)) == 2


def test_an_exception_in_the_block_of_an_open_call_stops_it_and_is_raised(server: FacadeServer) -> None:
    with connect(server) as peer:
        with pytest.raises(ZeroDivisionError), peer.open(Count(upto=0, linger=True)):  # noqa: PT012
            assert server.next_event() == "lingering"
            raise ZeroDivisionError
        assert server.next_event() == "counted"


def test_a_service_of_the_client_answers_the_server(server: FacadeServer) -> None:
    service = rlm_wire.Service()
    names = []

    @service.handle(Name)
    def name(request: Name) -> str:
        names.append(threading.current_thread().name)
        return "a plain program"

    with connect(server, service) as peer:
        assert peer.call(AskBack()) == "you are a plain program"
    assert names == ["rlm_wire"]


def test_a_handler_that_would_wait_for_its_own_thread_is_refused(server: FacadeServer) -> None:
    service = rlm_wire.Service()
    errors = []

    @service.handle(Name)
    def name(request: Name) -> str:
        try:
            peer.call(Add(1, 2))
        except RuntimeError as error:
            errors.append(str(error))
        return "stuck"

    with connect(server, service) as peer:
        assert peer.call(AskBack()) == "you are stuck"
    assert "call.peer" in errors[0]


def test_calls_carry_the_scope_of_their_caller(server: FacadeServer) -> None:
    with connect(server) as peer:
        assert peer.call(ScopeOf()) is None
        reset = rlm_wire.current_scope.set("cell-7")
        try:
            assert peer.call(ScopeOf()) == "cell-7"
        finally:
            rlm_wire.current_scope.reset(reset)


def test_threads_share_a_peer(server: FacadeServer) -> None:
    with connect(server) as peer, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: peer.call(Add(n, n)), range(200))) == [2 * n for n in range(200)]


def test_a_call_that_another_thread_waits_for_fails_when_the_session_is_closed(server: FacadeServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        with connect(server) as peer:
            waiting = pool.submit(peer.call, Wait())
            assert server.next_event() == "waiting"
        with pytest.raises(rlm_wire.SessionLost, match="closed here") as failure:
            waiting.result(timeout=30)
        assert failure.value.fate == "maybe_executed"
    assert server.next_event() == "stopped"


def test_an_open_call_of_another_thread_can_be_left_after_the_session_was_closed(server: FacadeServer) -> None:
    opened, closed = threading.Event(), threading.Event()

    def hold(peer: rlm_wire.blocking.Peer) -> None:
        with peer.open(Count(upto=0, linger=True)):
            opened.set()
            closed.wait(30)

    with ThreadPoolExecutor(1) as pool:
        with connect(server) as peer:
            holding = pool.submit(hold, peer)
            assert opened.wait(30)
        closed.set()
        holding.result(timeout=30)


def test_what_is_used_after_the_end_says_so(server: FacadeServer) -> None:
    with connect(server) as peer, peer.open(Count(upto=3)) as call:
        pass
    for use in (
        lambda: peer.call(Add(1, 2)),
        peer.ping,
        lambda: peer.open(Count(1)).__enter__(),
        call.result,
        lambda: next(call),
        lambda: call.send(1),
    ):
        with pytest.raises(rlm_wire.SessionLost, match=r"the `with` block of its connect\(\) has been left") as failure:
            use()
        assert failure.value.fate == "not_sent"
    call.cancel()


def test_an_exception_in_the_body_closes_the_session_and_is_raised(server: FacadeServer) -> None:
    with pytest.raises(ZeroDivisionError), connect(server) as peer:
        raise ZeroDivisionError
    assert peer.closed


def test_a_session_lost_fails_the_call_and_leaves_the_body_in_peace(server: FacadeServer) -> None:
    with connect(server) as peer:
        with pytest.raises(rlm_wire.SessionLost):
            peer.call(HangUp())
        peer.wait_closed()
        with pytest.raises(rlm_wire.SessionLost):
            peer.call(Add(1, 2))


def test_errors_of_connecting_are_raised_as_they_are(server: FacadeServer) -> None:
    with pytest.raises(rlm_wire.AuthenticationError), rlm_wire.blocking.connect(server.url.result(), token="wrong"):
        pytest.fail("entered")
    with pytest.raises(rlm_wire.TransportError), rlm_wire.blocking.connect("nonsense:x"):
        pytest.fail("entered")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(rlm_wire.TransportError), rlm_wire.blocking.connect(url, token="x"):
            pytest.fail("entered")


def test_a_bug_in_a_handler_of_the_client_that_ends_the_session_is_raised_on_leaving(server: FacadeServer) -> None:
    service = rlm_wire.Service()

    @service.handle(Name)
    async def name(request: Name) -> str:
        raise SystemExit("a handler gave up")

    with pytest.raises(SystemExit, match="gave up"), connect(server, service) as peer:  # noqa: PT012
        with pytest.raises(rlm_wire.SessionLost):
            peer.call(AskBack())
        peer.wait_closed()


# ------------------------------------------------------------------- interrupts

_SCRIPT = """
import sys, rlm_wire, rlm_wire.blocking, signal
from facade_server import *
url = sys.argv[1]
def say(*words):
    print(*words, flush=True)
with rlm_wire.blocking.connect(url, token=TOKEN) as peer:
    {body}
say("left")
"""


def _program(server: FacadeServer, body: str) -> subprocess.Popen[str]:
    tests = Path(__file__).parent
    script = _SCRIPT.replace("{body}", "\n    ".join(body.strip().splitlines()))
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", script, server.url.result()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupt_cancels_the_call_at_the_peer_and_the_session_goes_on(server: FacadeServer) -> None:
    body = """
try:
    peer.call(Wait())
except KeyboardInterrupt:
    say("interrupted")
say(peer.call(Add(1, 2)))
"""
    with _program(server, body) as program:
        assert server.next_event() == "waiting"
        program.send_signal(signal.SIGINT)
        assert server.next_event() == "stopped"
        out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == ("interrupted\n3\nleft\n", "", 0)


def test_an_interrupt_while_items_are_awaited_loses_none(server: FacadeServer) -> None:
    body = """
with peer.open(Collect()) as call:
    try:
        say("ready")
        next(call)
    except KeyboardInterrupt:
        say("interrupted")
    call.send(1)
    call.send(2)
    call.close_sending()
    say(list(call), call.result())
"""
    with _program(server, body) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == ("interrupted\n[1, 2] [1, 2]\nleft\n", "", 0)


def test_a_second_interrupt_does_not_wait_for_a_peer_that_does_not_stop(server: FacadeServer) -> None:
    body = """
try:
    peer.call(Stubborn())
except KeyboardInterrupt:
    say("raised")
try:
    peer.call(Add(1, 2))
except rlm_wire.SessionLost as error:
    say(error)
"""
    with _program(server, body) as program:
        assert server.next_event() == "waiting"
        program.send_signal(signal.SIGINT)
        assert server.next_event() == "cancelled"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
        assert server.next_event() == "stopped"
    raised, lost, left = out.splitlines()
    assert "broken off here by an interrupt" in lost
    assert (raised, left, err, program.returncode) == ("raised", "left", "", 0)


def test_an_interrupt_while_connecting_to_a_silent_server_ends_the_attempt() -> None:
    script = """
import sys, rlm_wire.blocking, threading
try:
    with rlm_wire.blocking.connect(sys.argv[1], token="x"):
        pass
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        root = str(Path(__file__).parent.parent)
        with subprocess.Popen(
            [sys.executable, "-c", script, url],
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(30)
                assert connection.recv(8)
                program.send_signal(signal.SIGINT)
                out, err = program.communicate(timeout=60)
    assert (out, err) == ("interrupted 1\n", "")


def test_a_program_that_never_leaves_its_block_can_end(server: FacadeServer) -> None:
    script = """
import sys, rlm_wire.blocking
from facade_server import *
session = rlm_wire.blocking.connect(sys.argv[1], token=TOKEN)
peer = session.__enter__()
with peer.open(Count(upto=1)) as call:
    print(peer.call(Add(1, 2)), flush=True)
"""
    tests = Path(__file__).parent
    program = subprocess.run(
        [sys.executable, "-c", script, server.url.result()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (program.stdout, program.returncode) == ("3\n", 0)
