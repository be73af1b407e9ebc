"""Messages of one client, over a stream in memory: what carries them must hold, whatever the methods do."""

import json

import pytest
import trio

from rlm_harness.acp.jsonrpc import Connection
from rlm_wire.transports.memory import memory_pair


async def answers(admit, *lines):
    """What a client gets that says `lines`, and closes its side then."""
    ours, theirs = memory_pair()
    received = b""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Connection(theirs, admit).run)
            await ours.send([json.dumps(line).encode() + b"\n" for line in lines])
            buffer = memoryview(bytearray(65536))
            while received.count(b"\n") < sum("id" in line for line in lines):
                received += buffer[: await ours.receive_into(buffer)]
            await ours.aclose()
    return [json.loads(line) for line in received.splitlines()]


def works(_):
    async def answer():
        return {"done": True}

    return answer


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_what_nobody_foresaw_is_told_and_logged_and_what_comes_behind_is_served(when, caplog):
    def admit(message):
        if message.method == "fine":
            return works(message)
        if when == "at once":
            raise ZeroDivisionError("a mistake")
        return fails

    async def fails():
        raise ZeroDivisionError("a mistake")

    lines = [{"id": 1, "method": "bad"}, {"method": "bad"}, {"id": 2, "method": "fine"}]
    told = {answer["id"]: answer for answer in await answers(admit, *lines)}
    assert told[1]["error"]["code"] == -32603
    assert told[1]["error"]["data"] == {"kind": "internal", "details": "ZeroDivisionError: a mistake"}
    assert told[2]["result"] == {"done": True}
    assert caplog.text.count("a request has failed") == 2  # the notification, too


async def test_a_text_that_is_none_is_told_as_far_as_it_can_be():
    async def answer():
        return {"path": "/x/\udcff"}

    told = await answers(lambda _: answer, {"id": 1, "method": "x"})
    assert told == [{"jsonrpc": "2.0", "id": 1, "result": {"path": "/x/\ufffd"}}]
