"""The chat-completions client against a real HTTP server on loopback."""

import email.utils
import gzip
import resource
import socket
import time
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from rlm_harness.events import Retrying, TextDelta, Usage
from rlm_harness.model.chat import completions_url, open_chat_model
from rlm_harness.model.interface import ModelError, ToolCall
from rlm_harness.model.retries import RetryPolicy
from rlm_harness.model.streaming import MAX_REPLY
from rlm_harness.secrets import Secret, UserError
from rlm_harness.tools import TOOL_SCHEMAS

KEY = "sk-very-secret"
QUESTION = [{"role": "user", "content": "hi"}]
PACKED_TWICE = gzip.compress(gzip.compress(bytes(150_000_000), 1))
QUICK = RetryPolicy(attempts=3, first=0.001)


async def ask(server, events, *, tools=(), policy=QUICK, key=KEY, **options):
    with trio.fail_after(20):
        async with open_chat_model(
            "m", server.base_url, Secret(key) if key else None, policy=policy, **options
        ) as model:
            return await model.reply(QUESTION, tools, events.emit)


async def test_a_reply_is_streamed_and_complete(model_server, script, events):
    model_server.answers = [script.says("Hel", "lo ", "wörld", usage=(12, 3))]
    reply = await ask(model_server, events)
    assert (reply.text, reply.finish_reason, reply.usage) == ("Hello wörld", "stop", Usage(12, 3))
    assert [event.text for event in events.of(TextDelta)] == ["Hel", "lo ", "wörld"]


async def test_a_tool_call_comes_out_of_its_deltas(model_server, script, events):
    model_server.answers = [script.calls("bash", {"command": "ls"}, text="Look.")]
    reply = await ask(model_server, events, tools=TOOL_SCHEMAS)
    assert reply.tool_calls == [ToolCall("call_a", "bash", '{"command": "ls"}')]
    assert reply.message["tool_calls"][0]["function"]["name"] == "bash"


async def test_the_next_request_goes_over_the_same_connection(model_server, script, events):
    model_server.answers = [script.says("one"), script.says("two")]
    async with open_chat_model("m", model_server.base_url) as model:
        assert (await model.reply(QUESTION, [], events.emit)).text == "one"
        assert (await model.reply(QUESTION, [], events.emit)).text == "two"
    assert model_server.connections == 1


async def test_several_calls_are_asked_for_only_where_they_may_come(model_server, script, events):
    model_server.answers = [script.says("ok")]
    async with open_chat_model("m", model_server.base_url, several_tools=True) as model:
        await model.reply(QUESTION, TOOL_SCHEMAS, events.emit)
    assert model_server.requests[0]["parallel_tool_calls"] is True


async def test_the_request_asks_for_a_stream_with_usage_and_one_call_at_a_time(model_server, script, events):
    model_server.answers = [script.says("ok")]
    await ask(model_server, events, tools=TOOL_SCHEMAS)
    request = model_server.requests[0]
    assert model_server.paths == ["/v1/chat/completions"]
    assert request["messages"] == QUESTION
    assert (request["model"], request["stream"], request["stream_options"]) == ("m", True, {"include_usage": True})
    assert request["parallel_tool_calls"] is False
    assert model_server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_without_tools_nothing_is_said_of_tools_and_without_a_key_nothing_of_keys(model_server, script, events):
    model_server.answers = [script.says("ok")]
    await ask(model_server, events, key=None)
    assert not {"tools", "parallel_tool_calls"} & set(model_server.requests[0])
    assert "authorization" not in model_server.headers[0]


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503])
async def test_what_may_pass_is_tried_again(model_server, script, events, code):
    model_server.answers = [script.status(code, {"error": {"message": "busy"}}), script.says("ok")]
    assert (await ask(model_server, events)).text == "ok"
    assert [(e.reason, e.attempt) for e in events.of(Retrying)] == [(f"HTTP {code}: busy", 2)]


async def test_each_call_has_a_name_which_all_its_attempts_carry_with_the_same_bytes(model_server, script, events):
    model_server.answers = [script.status(503), script.says("one"), script.says("two")]
    options = {"policy": QUICK, "headers": {"X-Team": "blue"}, "request_header": "X-Request-Name"}
    async with open_chat_model("m", model_server.base_url, **options) as model:
        replies = [await model.reply(QUESTION, [], events.emit) for _ in range(2)]
    sent = [(headers["x-request-name"], headers["idempotency-key"]) for headers in model_server.headers]
    first, second = (reply.request_id for reply in replies)
    assert sent == [(first, first), (first, first), (second, second)]
    assert first != second
    assert model_server.bodies[0] == model_server.bodies[1]
    assert all(headers["x-team"] == "blue" for headers in model_server.headers)


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_retry_after_is_waited_for(model_server, script, events, form):
    wait = "37" if form == "seconds" else email.utils.formatdate(time.time() + 38, usegmt=True)
    model_server.answers = [script.status(429, Retry_After=wait), script.says("ok")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, model_server, events)
        retrying = await events.wait_for(Retrying)
        nursery.cancel_scope.cancel()
    assert 36 <= retrying.delay <= 38 * 1.1


async def test_a_server_that_asks_for_too_long_is_not_waited_for(model_server, script, events):
    model_server.answers = [script.status(429, Retry_After="3600")]
    with pytest.raises(ModelError, match="asks to wait 3600 s"):
        await ask(model_server, events)


async def test_an_address_where_nobody_answers_is_doubted_from_the_first_retry_on(events):
    policy = RetryPolicy(attempts=9, attempts_to_meet=2, first=0.001)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        async with open_chat_model("m", f"http://127.0.0.1:{deaf.getsockname()[1]}", policy=policy) as model:
            with pytest.raises(
                ModelError, match=r"\(Connection refused\); check --base-url \(gave up after 2 attempts\)"
            ):
                await model.reply(QUESTION, [], events.emit)
    assert [retry.reason.endswith("; check --base-url") for retry in events.of(Retrying)] == [True]


async def test_an_endpoint_that_was_reached_before_is_tried_as_often_as_any_and_not_doubted(
    model_server, script, events
):
    model_server.answers = [script.says("one")]
    async with open_chat_model("m", model_server.base_url, policy=RetryPolicy(attempts=4, first=0.001)) as model:
        await model.reply(QUESTION, [], events.emit)
        model_server.listening.cancel()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ModelError, match="gave up after 4 attempts") as caught:
            await model.reply(QUESTION, [], events.emit)
    assert "--base-url" not in str(caught.value)


async def test_after_the_last_attempt_the_reason_is_told(model_server, script, events):
    model_server.answers = [script.status(500, {"error": {"message": "broken"}})] * 3
    with pytest.raises(ModelError, match=r"HTTP 500: broken \(gave up after 3 attempts\)") as caught:
        await ask(model_server, events)
    assert not caught.value.refused


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (400, "refuses"),
        (401, "API key is wrong"),
        (403, "may not use"),
        (404, "--base-url"),
        (413, "too long for the model"),
        (301, "moved"),
    ],
)
async def test_what_will_not_pass_is_refused_at_once_with_advice(model_server, script, events, code, advice):
    model_server.answers = [script.status(code, {"error": {"message": f"no: {KEY}"}})]
    with pytest.raises(ModelError, match=advice) as caught:
        await ask(model_server, events)
    assert caught.value.refused
    assert len(model_server.requests) == 1
    assert KEY not in str(caught.value)
    assert "[secret]" in str(caught.value)


@pytest.mark.parametrize("status", [401, 503])
async def test_what_a_header_holds_is_not_shown_when_the_endpoint_quotes_it(model_server, script, events, status):
    said = {"error": {"message": f"not for {KEY}, {KEY}-of-the-team, sesame-0123; sorted by on"}}
    model_server.answers = [script.status(status, said)] * 3
    headers = {"X-Team": f"{KEY}-of-the-team", "X-Secret": "sesame-0123", "X-Sorted": "on"}
    with pytest.raises(ModelError) as caught:
        await ask(model_server, events, headers=headers)
    quoted = "not for [secret], [secret], [secret]; sorted by on"
    assert quoted in str(caught.value)
    assert all(quoted in event.reason for event in events.of(Retrying))


async def test_nobody_there_is_tried_again_and_then_told(model_server, events):
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    model_server.base_url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
    await listener.aclose()
    with pytest.raises(ModelError, match="cannot reach http://127"):
        await ask(model_server, events)
    assert len(events.of(Retrying)) == 2


async def test_a_stalled_stream_is_left_and_tried_again(model_server, script, events):
    started = script.events(script.delta(content="so far"), end=False, done=False)
    stalling = script.says("")
    stalling.data, stalling.stall = started, True
    model_server.answers = [stalling, script.says("all")]
    assert (await ask(model_server, events, idle_timeout=0.2)).text == "all"
    assert "stalled" in events.of(Retrying)[0].reason
    await model_server.client_left.wait()


async def test_a_stream_of_nothing_but_comments_has_stalled(model_server, script, events):
    endless = script.says("")
    endless.data, endless.repeat = script.events(done=False, end=False), b"8\r\n: alive\n\r\n"
    model_server.answers = [endless, script.says("all")]
    assert (await ask(model_server, events, idle_timeout=0.5)).text == "all"
    assert "stalled" in events.of(Retrying)[0].reason


@asynccontextmanager
async def serving(serve):
    """The base URL of an endpoint that serves one connection with `serve`, once it has been asked something."""

    async def answer(stream):
        async with stream:
            await stream.receive_some()
            with suppress(trio.BrokenResourceError):
                await serve(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
        nursery.cancel_scope.cancel()


async def pass_time(mock_clock, seconds):
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def test_headers_that_come_byte_by_byte_are_waited_for_a_limited_time(script, events, mock_clock):
    async def drip(stream):
        whole = script.says("late").data
        for byte in whole[:8]:
            await stream.send_all(bytes([byte]))
            await pass_time(mock_clock, 100)
        await stream.send_all(whole[8:])

    async with (
        serving(drip) as url,
        open_chat_model("m", url, policy=RetryPolicy(attempts=1)) as model,
    ):
        with pytest.raises(ModelError, match="next to nothing"):
            await model.reply(QUESTION, [], events.emit)


async def test_a_stream_that_has_begun_may_take_its_time(script, events, mock_clock):
    async def take_time(stream):
        whole = script.says("one", "two", "three", "four").data
        for line in whole.splitlines(keepends=True):
            await stream.send_all(line)
            await pass_time(mock_clock, 50)

    async with serving(take_time) as url, open_chat_model("m", url) as model:
        assert (await model.reply(QUESTION, [], events.emit)).text == "onetwothreefour"


async def test_of_a_refusal_is_told_what_came_in_time(script, events, mock_clock):
    async def drip(stream):
        whole = script.status(401, b"no, and by the way").data
        await stream.send_all(whole[:-14])
        await pass_time(mock_clock, 11)
        await stream.send_all(whole[-14:])

    async with serving(drip) as url, open_chat_model("m", url) as model:
        with pytest.raises(ModelError, match=r"API key is wrong.*HTTP 401 .*: no,$"):
            await model.reply(QUESTION, [], events.emit)


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_a_packed_answer_is_not_unpacked(model_server, script, events, status):
    packed = script.status(status, PACKED_TWICE, Content_Encoding="gzip, gzip")
    packed.data = packed.data.replace(b"application/json", b"text/event-stream")
    model_server.answers = [packed, script.says("ok")]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(ModelError):
        await ask(model_server, events)
    assert [e.reason for e in events.of(Retrying)] == ["HTTP 503"] * (status == 503)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100_000


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        (["{garbage"], "not a chat completion chunk"),
        ([{"error": {"message": "overloaded", "code": 529}}], "overloaded"),
        ([{"choices": [{"delta": {"content": "cut"}}]}], "middle of the reply"),
    ],
)
async def test_a_stream_that_is_no_reply_is_tried_again(model_server, script, events, payloads, reason):
    bad = script.says("")
    bad.data = script.events(*payloads)
    model_server.answers = [bad, script.says("ok")]
    assert (await ask(model_server, events)).text == "ok"
    assert reason in events.of(Retrying)[0].reason


async def test_a_stream_that_went_wrong_is_left_even_if_it_never_ends(model_server, script, events):
    bad = script.says("")
    bad.data, bad.stall = script.events("{garbage", end=False, done=False), True
    model_server.answers = [bad, script.says("ok")]
    assert (await ask(model_server, events)).text == "ok"
    await model_server.client_left.wait()


async def test_an_error_inside_the_stream_that_will_not_pass_is_final(model_server, script, events):
    bad = script.says("")
    bad.data = script.events({"error": {"message": f"bad {KEY}", "code": 400}})
    model_server.answers = [bad]
    with pytest.raises(ModelError, match=r"bad \[secret\]"):
        await ask(model_server, events)


async def test_a_connection_cut_in_a_chunk_is_tried_again(model_server, script, events):
    cut = script.says("hello", "world")
    cut.data = cut.data[: cut.data.index(b"world") + 2]
    model_server.answers = [cut, script.says("ok")]
    assert (await ask(model_server, events)).text == "ok"
    assert "connection broke" in events.of(Retrying)[0].reason


async def test_a_connection_cut_behind_the_last_word_does_no_harm(model_server, script, events):
    cut = script.says("")
    cut.data = script.events(script.delta(content="all"), script.delta("stop"), end=False, done=False)
    model_server.answers = [cut]
    assert (await ask(model_server, events)).text == "all"


async def test_a_web_page_instead_of_a_stream_is_explained(model_server, script, events):
    page = script.status(200, b"<html>")
    page.data = page.data.replace(b"application/json", b"text/html; charset=utf-8")
    model_server.answers = [page]
    with pytest.raises(ModelError, match=r"text/html, not with events: is the base URL right"):
        await ask(model_server, events)


async def test_an_endless_reply_is_cut_off(model_server, script, events):
    endless = script.says("")
    endless.data = script.events(*[script.delta(content="x" * 65_000)] * (MAX_REPLY // 65_000 + 1))
    model_server.answers = [endless]
    with pytest.raises(ModelError, match="larger than"):
        await ask(model_server, events)


async def test_cancelling_a_reply_closes_its_connection(model_server, script, events):
    stalling = script.says("")
    stalling.data, stalling.stall = script.events(script.delta(content="Hm"), end=False, done=False), True
    model_server.answers = [stalling]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, model_server, events)
        await events.wait_for(TextDelta)
        nursery.cancel_scope.cancel()
    await model_server.client_left.wait()
    assert events.of(Retrying) == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a/v1",
        "nonsense",
        "http://",
        "http://user:pw@a/v1",
        "http://a/v1?x=1",
        "http://a/#f",
        "http://a:port/",
        "http://a:65536/",
        "http://a..b/v1",
        f"http://{'a' * 64}.b/v1",
    ],
)
def test_a_base_url_that_cannot_be_one_is_refused(url):
    with pytest.raises(UserError):
        completions_url(url)


def test_a_trailing_slash_of_the_base_url_is_harmless():
    assert completions_url("http://a/v1/") == completions_url("http://a/v1") == "http://a/v1/chat/completions"
