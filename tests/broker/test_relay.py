"""A relay passes calls on undecoded, errors and cancels included, whatever codec each side speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from contract import calculator
from contract.calculator import Add, Echo, Marks, Refuse, Unknown, Wait

import rlm_wire
from rlm_wire.broker.relay import relay


@asynccontextmanager
async def relayed(near: str, far: str) -> AsyncIterator[rlm_wire.Peer]:
    """A client whose calls reach the calculator through a relay, over two codecs."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rlm_wire.serve("memory:far", calculator.service))
        to = await stack.enter_async_context(rlm_wire.connect("memory:far", codec=far))
        middle = rlm_wire.Service()

        @middle.handle(Unknown)
        def here(request: Unknown) -> int:
            return 7

        @middle.handle_rest
        async def rest(method: str, params: msgspec.Raw, call: rlm_wire.IncomingCall[Any, Any]) -> msgspec.Raw:
            return await relay(method, params, call, to, scope="a scope")

        await stack.enter_async_context(rlm_wire.serve("memory:near", middle))
        yield await stack.enter_async_context(rlm_wire.connect("memory:near", codec=near))


@pytest.mark.parametrize(("near", "far"), [("msgpack", "msgpack"), ("json", "msgpack"), ("msgpack", "json")])
async def test_calls_pass_through_and_own_methods_do_not(near: str, far: str) -> None:
    async with relayed(near, far) as peer:
        assert await peer.call(Add(1, 2)) == 3
        assert await peer.call(Unknown()) == 7
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Refuse("not_found"))
        assert (caught.value.code, caught.value.data) == ("not_found", {"why": 1})


async def test_large_results_pass_through() -> None:
    async with relayed("msgpack", "msgpack") as peer:
        assert await peer.call(Echo(b"x" * 5_000_000)) == b"x" * 5_000_000


async def test_a_cancel_passes_through_and_the_work_has_stopped() -> None:
    async with relayed("msgpack", "msgpack") as peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.call, Wait("w"))
            while "w started" not in await peer.call(Marks()):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert "w stopped" in await peer.call(Marks())
