"""Traces: one record a frame, what they leave out, and that they cannot hurt the session they watch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Never

import pytest
import trio

import rlm_wire

SECRET = "swordfish-and-more"


class Echo(rlm_wire.Request[str], tag="trace.echo"):
    text: str


class Repeat(rlm_wire.StreamRequest[int, str, Never], tag="trace.repeat"):
    text: str
    times: int


def service() -> rlm_wire.Service:
    service = rlm_wire.Service()

    @service.handle(Echo)
    def echo(request: Echo) -> str:
        return request.text

    @service.handle(Repeat)
    async def repeat(request: Repeat, call: rlm_wire.IncomingCall[str, Never]) -> int:
        for _ in range(request.times):
            await call.send(request.text)
        return request.times

    return service


async def talk(peer: rlm_wire.Peer) -> None:
    assert await peer.call(Echo("hello")) == "hello"
    async with peer.open(Repeat("again", 2)) as call:
        assert [item async for item in call] == ["again", "again"]
        assert await call.result() == 2
    with pytest.raises(rlm_wire.CallError):
        await peer.call(Unknown())
    await peer.ping()


class Unknown(rlm_wire.Request[None], tag="trace.unknown"):
    pass


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def types(records: list[dict[str, Any]], direction: str) -> list[str]:
    return [record["type"] for record in records if record["direction"] == direction]


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_each_frame_is_a_line_of_the_file(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "frames.jsonl"
    trace = rlm_wire.Trace(path)
    async with (
        rlm_wire.serve("tcp://127.0.0.1:0", service(), SECRET) as server,
        rlm_wire.connect(server.urls[0], token=SECRET, codec=codec, trace=trace) as peer,
    ):
        await talk(peer)
    records = lines(path)
    assert types(records, "sent") == ["Preface", "Hello", "Proof", "Call", "Call", "Call", "Ping", "Goodbye"]
    assert types(records, "received") == [
        *("Preface", "Challenge", "Welcome", "Reply", "Item", "Item", "Reply", "Fail", "Pong"),
    ]
    call = next(record for record in records if record["type"] == "Call")
    assert call.keys() == {"t", "connection", "direction", "type", "size", "number", "id", "method"}
    assert (call["id"], call["method"], call["number"], call["connection"]) == (1, "trace.echo", 1, 1)
    assert [record["number"] for record in records if record["type"] in ("Reply", "Item", "Fail")] == [1, 2, 3, 4, 5]
    assert [record["code"] for record in records if record["type"] == "Fail"] == ["unimplemented"]
    assert records[0]["address"] == server.urls[0]


async def test_what_frames_carry_is_recorded_only_when_asked_for_and_secrets_never(tmp_path: Path) -> None:
    async with rlm_wire.serve("tcp://127.0.0.1:0", service(), SECRET) as server:
        for payload in (False, True):
            path = tmp_path / f"{payload}.jsonl"
            trace = rlm_wire.Trace(path, payload=payload)
            async with rlm_wire.connect(server.urls[0], token=SECRET, trace=trace) as peer:
                reset = rlm_wire.current_scope.set("scope-is-a-capability")
                await talk(peer)
                rlm_wire.current_scope.reset(reset)
            text = path.read_text()
            assert ("hello" in text) is payload
            assert ("again" in text) is payload
            for secret in (SECRET, "scope-is-a-capability", "nonce", "mac"):
                assert secret not in text
    values = [record["value"] for record in lines(tmp_path / "True.jsonl") if record["type"] == "Item"]
    assert values == ["again", "again"]


async def test_both_ends_record_the_same_frames(tmp_path: Path) -> None:
    client, server_records = tmp_path / "client", list[dict[str, Any]]()
    async with rlm_wire.serve(
        "tcp://127.0.0.1:0", service(), SECRET, trace=rlm_wire.Trace(server_records.append)
    ) as server:
        for _ in range(2):
            async with rlm_wire.connect(server.urls[0], token=SECRET, trace=rlm_wire.Trace(client)) as peer:
                await talk(peer)
                await peer.call(Echo("large " * 100_000))
    assert types(server_records, "received") == types(lines(client), "sent")
    assert types(server_records, "sent") == types(lines(client), "received")
    assert {record["connection"] for record in server_records} == {1, 2}
    assert "Part" in types(server_records, "sent")


async def test_a_recorder_that_fails_ends_the_trace_and_not_the_session(caplog: pytest.LogCaptureFixture) -> None:
    def recorder(record: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        async with (
            rlm_wire.serve("memory:trace-recorder", service()),
            rlm_wire.connect("memory:trace-recorder", trace=rlm_wire.Trace(recorder)) as peer,
        ):
            await talk(peer)
    assert "the trace of memory:trace-recorder" in caplog.text


async def test_a_full_disk_does_not_end_the_session(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with (
            rlm_wire.serve("memory:trace-full", service()),
            rlm_wire.connect("memory:trace-full", trace=rlm_wire.Trace("/dev/full")) as peer,
        ):
            await talk(peer)
    assert "No space left on device" in caplog.text


async def test_records_that_wait_are_written_when_the_session_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "frames.jsonl"
    async with rlm_wire.serve("memory:trace-cancelled", service()):
        with trio.CancelScope() as scope:
            async with rlm_wire.connect("memory:trace-cancelled", trace=rlm_wire.Trace(path)) as peer:
                await talk(peer)
                scope.cancel()
                await trio.sleep_forever()
    assert types(lines(path), "sent")[-1] == "Goodbye"


async def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with rlm_wire.connect("memory:trace-no", trace=rlm_wire.Trace(tmp_path / "no" / "file")):
            pytest.fail("entered")
