"""How endpoints say that a conversation is too long, and how long it may be."""

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rlm_harness.model.chat import open_chat_model
from rlm_harness.model.discovery import window_untrusted
from rlm_harness.model.interface import ContextOverflow, ModelError
from rlm_harness.model.overflow import is_overflow
from rlm_harness.secrets import Secret

TOO_LONG = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"code": "context_length_exceeded", "message": "no"}}),
        (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "no"}}),
        (400, {"object": "error", "message": TOO_LONG, "code": 400}),
        (400, {"error": TOO_LONG}),
        (422, {"detail": "Input is too long for requested model"}),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (None, {"code": "context_length_exceeded"}),
        (413, None),
    ],
)
def test_overflow_is_known_by_its_code_and_else_by_its_words(status, error):
    assert is_overflow(status, error)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"code": "invalid_value", "message": "tools must not be empty"}}),
        (429, {"error": {"code": "rate_limit_exceeded", "message": "reduce the length of the messages"}}),
        (500, {"error": {"message": TOO_LONG}}),
        (401, {"error": {"code": "context_length_exceeded"}}),
        (400, None),
        (400, [1, 2]),
        (None, {"message": "overloaded"}),
    ],
)
def test_other_refusals_are_not_taken_for_it(status, error):
    assert not is_overflow(status, error)


async def ask(server, events):
    async with open_chat_model("m", server.base_url, Secret("sk-over")) as model:
        return await model.reply([{"role": "user", "content": "hi"}], [], events.emit)


async def test_a_refused_conversation_is_an_overflow_with_the_endpoints_own_words(model_server, script, events):
    error = {"error": {"code": "context_length_exceeded", "message": f"{TOO_LONG} sk-over"}}
    model_server.answers = [script.status(400, error)]
    with pytest.raises(ContextOverflow, match=r"too long for the model; HTTP 400 .* maximum context .* \[secret\]"):
        await ask(model_server, events)


async def test_an_overflow_reported_in_the_stream_is_one_too(model_server, script, events):
    answer = script.says("")
    answer.data = script.events({"error": {"message": TOO_LONG, "code": 400}})
    model_server.answers = [answer]
    with pytest.raises(ContextOverflow, match="too long for the model; the endpoint reports"):
        await ask(model_server, events)
    assert len(model_server.requests) == 1


async def test_another_refusal_is_none(model_server, script, events):
    model_server.answers = [script.status(400, {"error": {"message": "no"}})]
    with pytest.raises(ModelError) as caught:
        await ask(model_server, events)
    assert not isinstance(caught.value, ContextOverflow)


async def test_a_summary_is_asked_for_with_the_same_tools_and_none_to_be_called(model_server, script, events):
    tool = {"type": "function", "function": {"name": "t", "description": "", "parameters": {}}}
    model_server.answers = [script.says("a"), script.says("b")]
    async with open_chat_model("m", model_server.base_url) as model:
        for choice in ("auto", "none"):
            await model.reply([{"role": "user", "content": "hi"}], [tool], events.emit, choice)
    plain, summary = model_server.requests
    assert summary == plain | {"tool_choice": "none"}


def listing(*entries):
    return json.dumps({"object": "list", "data": list(entries)}).encode()


@pytest.mark.parametrize(
    ("body", "window"),
    [
        (listing({"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 32768}), 32768),
        (listing({"id": "m", "context_length": 200_000}), 200_000),
        (listing({"id": "m", "context_window": 131_072, "max_context_length": 5}), 131_072),
        (listing({"id": "m", "max_context_length": 4096}), 4096),
        (listing({"id": "/models/m.gguf", "max_model_len": 4096}), 4096),
        (listing({"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}), None),
        (listing({"id": "m"}), None),
        (listing({"id": "m", "max_model_len": 0}), None),
        (listing({"id": "m", "max_model_len": "32768"}), None),
        (listing(), None),
        (b"<html>", None),
        (b"\xff", None),
        (b'{"data":' + b"[" * 100_000, None),
    ],
)
def test_the_window_is_found_where_endpoints_put_it(body, window):
    assert window_untrusted(body, "m") == window


@given(st.binary())
def test_whatever_the_endpoint_says_there_is_no_error(body):
    window_untrusted(body, "m")


async def test_the_window_is_asked_for_once_and_with_the_key(model_server, script):
    model_server.models = script.status(200, {"data": [{"id": "m", "max_model_len": 1000}]})
    async with open_chat_model("m", model_server.base_url, Secret("sk-over")) as model, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(model.context_window)
        assert await model.context_window() == 1000
    assert [headers["authorization"] for headers in model_server.lookups] == ["Bearer sk-over"]


@pytest.mark.parametrize("trouble", ["missing", "huge", "packed", "gone", "cut"])
async def test_an_endpoint_that_does_not_tell_its_window_is_not_asked_again(model_server, script, trouble):
    if trouble == "huge":
        model_server.models = script.status(200, b"x" * 5_000_000)
    elif trouble == "packed":
        model_server.models = script.status(200, b"\x1f\x8b", Content_Encoding="gzip")
    elif trouble == "cut":
        model_server.models = script.status(200, b"{}")
        model_server.models.data = model_server.models.data[:-1]
    elif trouble == "gone":
        model_server.listening.cancel()
    async with open_chat_model("m", model_server.base_url) as model:
        for _ in range(2):
            assert await model.context_window() is None
    assert len(model_server.lookups) == (trouble != "gone")


async def test_an_endpoint_that_stalls_is_not_waited_for(autojump_clock):
    async def stall(stream):
        async with stream:
            while await stream.receive_some():
                pass

    # Sockets need real time: the request is under way, or not even that, when the virtual clock jumps.
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, stall, listeners)
        port = listeners[0].socket.getsockname()[1]
        async with open_chat_model("m", f"http://127.0.0.1:{port}/v1") as model:
            assert await model.context_window() is None
        nursery.cancel_scope.cancel()
