"""Scopes: open ones lead to their agent, closing one cancels what runs in it, and tasks keep the one they began in."""

from __future__ import annotations

import pytest
import trio
from contract.calculator import Ask, Relay

import rlm_wire


def test_only_an_open_scope_has_an_agent() -> None:
    scopes = rlm_wire.Scopes()
    with scopes.open("s", "agent"):
        assert scopes.agent_of("s") == "agent"
        for other in (None, "forged"):
            with pytest.raises(rlm_wire.CallError) as caught:
                scopes.agent_of(other)
            assert caught.value.code == "permission_denied"
    with pytest.raises(rlm_wire.CallError):
        scopes.agent_of("s")


async def test_closing_a_scope_cancels_what_runs_in_it() -> None:
    scopes = rlm_wire.Scopes()
    started = trio.Event()
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        with scopes.within("s") as scope:
            started.set()
            await trio.sleep_forever()
        cancelled = scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        with scopes.open("s", "agent"):
            nursery.start_soon(work)
            await started.wait()
    assert cancelled


async def test_a_call_carries_the_scope_of_its_task_also_from_a_background_task() -> None:
    service = rlm_wire.Service()
    seen: list[str | None] = []

    @service.handle(Ask)
    async def ask(request: Ask, call: rlm_wire.IncomingCall[str, str]) -> str:
        seen.append(call.scope)
        assert rlm_wire.current_scope.get() == call.scope
        return ""

    @service.handle(Relay)
    async def relay(request: Relay) -> str:
        return ""

    async with (
        rlm_wire.serve("memory:scopes", service),
        rlm_wire.connect("memory:scopes") as peer,
        trio.open_nursery() as background,
    ):
        go = trio.Event()

        async def later() -> None:
            await go.wait()
            await peer.call(Ask("later"))

        rlm_wire.current_scope.set("cell 1")
        await peer.call(Ask("now"))
        background.start_soon(later)
        await trio.lowlevel.checkpoint()
        rlm_wire.current_scope.set("cell 2")
        await peer.call(Ask("next"))
        go.set()
    assert seen == ["cell 1", "cell 2", "cell 1"]
