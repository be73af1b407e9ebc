"""Calls, over every transport: results, failures, bad input. One call's fault never harms the next."""

from __future__ import annotations

import pytest
import trio
from contract.calculator import Add, Anything, Ask, Crash, Echo, Refuse, Relay, Unknown
from contract.conftest import Endpoint

import rlm_wire


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_a_call_returns_its_typed_result(endpoint: Endpoint, codec: str) -> None:
    async with endpoint.connect(codec=codec) as peer:
        assert peer.info.codec == codec
        assert await peer.call(Add(1, 2)) == 3
        assert await peer.call(Echo(b"\x00\xff")) == b"\x00\xff"
        assert await peer.ping() >= 0


@pytest.mark.parametrize("size", [0, 16_383, 16_384, 65_535, 65_536, 65_537, 70_000, 5_000_000])
async def test_data_of_any_size_comes_back_whole(endpoint: Endpoint, size: int) -> None:
    async with endpoint.connect() as peer:
        data = bytes(i & 0xFF for i in range(251)) * (size // 251 + 1)
        assert await peer.call(Echo(data[:size])) == data[:size]


async def test_b43_large_messages_both_ways_at_once(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, trio.open_nursery() as nursery:

        async def exchange(data: bytes) -> None:
            for _ in range(3):
                assert await peer.call(Echo(data)) == data

        for letter in b"abcd":
            nursery.start_soon(exchange, bytes([letter]) * 3_000_000)


async def test_a_failure_keeps_code_message_data_and_retryable(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Refuse("failed_precondition"))
        error = caught.value
        assert (error.code, error.message, error.data, error.retryable) == (
            "failed_precondition",
            "no",
            {"why": 1},
            True,
        )
        assert await peer.call(Add(1, 2)) == 3


async def test_a_handlers_bug_is_internal_and_tells_nothing(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Crash("hunter2"))
        assert caught.value.code == "internal"
        assert "hunter2" not in str(caught.value)
        assert await peer.call(Add(1, 2)) == 3


async def test_an_unknown_method_is_unimplemented(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError, match=r"calc\.unknown") as caught:
            await peer.call(Unknown())
        assert caught.value.code == "unimplemented"
        assert await peer.call(Add(1, 2)) == 3


async def test_wrong_params_are_refused_by_field(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError, match=r"\$\.y") as caught:
            await peer.call(Add(1, "two"))  # type: ignore[arg-type]
        assert caught.value.code == "invalid_argument"
        assert await peer.call(Add(1, 2)) == 3


@pytest.mark.parametrize("value", ["\udc80", 2**70, object()])
async def test_params_that_have_no_encoding_fail_here(endpoint: Endpoint, value: object) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Add(1, value))  # type: ignore[arg-type]
        assert caught.value.code == "invalid_argument"
        assert await peer.call(Add(1, 2)) == 3


@pytest.mark.parametrize("what", ["surrogate", "huge", "object", "deep"])
async def test_b47_a_result_that_cannot_be_sent_fails_its_call_only(endpoint: Endpoint, what: str) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError, match="cannot be sent") as caught:
            await peer.call(Anything(what))
        assert caught.value.code == "internal"
        assert await peer.call(Add(1, 2)) == 3


async def test_b44_too_large_either_way_fails_its_call_only(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        for request in (Echo(b"x" * 17_000_000), Anything("large")):
            with pytest.raises(rlm_wire.CallError) as caught:
                await peer.call(request)  # type: ignore[arg-type]
            assert caught.value.code == "resource_exhausted"
            assert caught.value.data["limit"] == 16 * 1024 * 1024
            assert await peer.call(Add(1, 2)) == 3


async def test_the_server_calls_back(endpoint: Endpoint) -> None:
    service = rlm_wire.Service()

    @service.handle(Ask)
    async def ask(request: Ask) -> str:
        return request.question + "!"

    async with endpoint.connect(service) as peer:
        assert await peer.call(Relay("well")) == "well!"


async def test_a_callback_nobody_answers_is_the_callers_error(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Relay("well"))
        assert caught.value.code == "unimplemented"


async def test_many_calls_at_once_all_get_their_own_answer(endpoint: Endpoint) -> None:
    answers: dict[int, int] = {}
    async with endpoint.connect() as peer:

        async def ask(number: int) -> None:
            answers[number] = await peer.call(Add(number, number))

        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(ask, number)
    assert answers == {number: 2 * number for number in range(500)}


async def test_a_closed_peer_says_so(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        pass
    with pytest.raises(rlm_wire.SessionLost) as caught:
        await peer.call(Add(1, 2))
    assert caught.value.fate == "not_sent"


async def test_what_the_body_raises_is_raised_as_it_is(endpoint: Endpoint) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with endpoint.connect():
            raise ValueError("mine")
