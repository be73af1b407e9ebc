import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_harness.events import Usage
from rlm_harness.model.interface import ToolCall
from rlm_harness.model.streaming import (
    MAX_EVENT,
    MAX_TOOL_CALLS,
    EventStreamDecoder,
    MalformedReply,
    ReplyAssembler,
    ReportedError,
    error_message,
)


def chunk(finish_reason=None, **delta):
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}).encode()


def call_delta(arguments="", **fields):
    name = fields.pop("name", None)
    return {"function": {"name": name, "arguments": arguments}, **fields}


def assemble(*chunks):
    assembler = ReplyAssembler()
    for data in chunks:
        assembler.feed(data)
    return assembler.reply()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["data: a", "data:b", ": comment", "event: x", "", "data: ä\u2028"])), st.data())
def test_an_event_stream_means_the_same_however_it_is_cut_and_whatever_ends_its_lines(lines, data):
    plain = ("\n".join(lines) + "\n\n").encode()
    whole = EventStreamDecoder().feed(plain)
    stream = plain.replace(b"\n", data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))) + b":"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = EventStreamDecoder()
    got = [
        event
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for event in decoder.feed(stream[start:end])
    ]
    assert got == whole


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_stream_means_the_same_byte_by_byte(end):
    stream = end.join([b"data: a", b"data: b", b"", b": comment", b"data: c", b"", b":"])
    decoder = EventStreamDecoder()
    assert [event for byte in stream for event in decoder.feed(bytes([byte]))] == [b"a\nb", b"c"]


def test_data_lines_of_one_event_are_joined():
    assert EventStreamDecoder().feed(b"data: a\ndata: b\n\n") == [b"a\nb"]


def test_the_end_of_a_large_event_may_come_byte_by_byte():
    start = b"x" * (MAX_EVENT - 100_000)
    decoder = EventStreamDecoder()
    assert decoder.feed(b"data: " + start) == []
    for _ in range(50_000):  # takes minutes if each has all that came before looked through
        decoder.feed(b"x")
    assert decoder.feed(b"\n\n") == [start + b"x" * 50_000]


@pytest.mark.parametrize("junk", [b"x" * (MAX_EVENT + 1), b"data: y\n" * MAX_EVENT])
def test_an_event_without_end_is_refused_before_it_fills_the_memory(junk):
    with pytest.raises(MalformedReply, match="larger than"):
        EventStreamDecoder().feed(junk)


def test_text_usage_and_end_come_together():
    reply = assemble(
        chunk(role="assistant", content=""),
        chunk(content="Hel"),
        chunk(content="lo"),
        chunk("stop"),
        b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}',
    )
    assert (reply.text, reply.finish_reason, reply.usage) == ("Hello", "stop", Usage(7, 3))


@pytest.mark.parametrize(
    ("details", "cached"), [("{}", 0), ("null", 0), ('{"cached_tokens":5}', 5), ('{"cached_tokens":99}', 7)]
)
def test_what_the_endpoint_had_in_its_cache_is_told_and_never_more_than_the_prompt(details, cached):
    usage = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":%s}}'
    assert assemble(chunk("stop"), usage % details.encode()).usage == Usage(7, 3, cached)


def test_a_tool_call_is_put_together_from_its_deltas():
    reply = assemble(
        chunk(tool_calls=[call_delta(index=0, id="a", name="bash")]),
        chunk(tool_calls=[call_delta('{"comm', index=0)]),
        chunk(tool_calls=[call_delta('and": "ls"}', index=0)]),
        chunk("tool_calls"),
    )
    assert reply.tool_calls == [ToolCall("a", "bash", '{"command": "ls"}')]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [call_delta("1", index=0, id="a", name="x"), call_delta("2", index=1, id="b", name="y")], id="by index"
        ),
        pytest.param(
            [call_delta("1", index=0, id="a", name="x"), call_delta("2", index=0, id="b", name="y")], id="by id only"
        ),
        pytest.param([call_delta("1", id="a", name="x"), call_delta("2", id="b", name="y")], id="without index"),
        pytest.param(
            [
                call_delta("", index=0, id="a", name="x"),
                call_delta("1", index=0, id="other"),
                call_delta("", index=1, id="b", name="y"),
                call_delta("2", index=1, id="yet another"),
            ],
            id="a new id in each delta",
        ),
        pytest.param(
            [
                call_delta("", index=0, id="a", name="x"),
                call_delta("1", index=0, id="a", name="x"),
                call_delta("2", index=1, id="b", name="y"),
            ],
            id="name repeated",
        ),
    ],
)
def test_two_calls_are_told_apart_in_every_dialect(deltas):
    reply = assemble(*(chunk(tool_calls=[delta]) for delta in deltas), chunk("tool_calls"))
    assert reply.tool_calls == [ToolCall("a", "x", "1"), ToolCall("b", "y", "2")]


def test_a_call_without_id_gets_one():
    reply = assemble(chunk(tool_calls=[call_delta("{}", index=0, name="x")]), chunk("tool_calls"))
    assert reply.tool_calls == [ToolCall("call_0", "x", "{}")]


def test_a_flood_of_calls_is_refused():
    flood = [call_delta(index=n, name="x") for n in range(MAX_TOOL_CALLS + 1)]
    with pytest.raises(MalformedReply, match="tool calls"):
        assemble(chunk(tool_calls=flood))


def test_a_stream_that_ends_early_is_no_reply():
    with pytest.raises(MalformedReply, match="middle"):
        assemble(chunk(content="Hel"))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"choices": 3}', b"\xff", b"[" * 100_000, b'{"choices":[{"delta":7}]}']
)
def test_what_is_no_chunk_is_malformed(data):
    with pytest.raises(MalformedReply, match="not a chat completion chunk"):
        assemble(data)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["choices", "delta", "usage", "error", "index", "tool_calls"]), x)
        ),
    )
)
def test_hostile_json_gives_a_reply_or_one_of_two_errors(value):
    assembler = ReplyAssembler()
    try:
        assembler.feed(msgspec.json.encode(value))
    except (MalformedReply, ReportedError):
        pass
    else:
        assert isinstance(value, dict)


@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        ({"message": "busy", "code": 503}, "busy", 503),
        ({"message": "no", "code": "bad"}, "no", None),
        ("text", "text", None),
    ],
)
def test_an_error_inside_the_stream_is_reported(error, message, status):
    with pytest.raises(ReportedError, match=message) as caught:
        assemble(json.dumps({"error": error}).encode())
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "wrong\\n key"}}', "wrong key"),
        (b'{"error": "gone"}', "gone"),
        (b'{"detail": "not found"}', "not found"),
        (b"<html>\n502</html>", "<html> 502</html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 9000, "[" * 500),
    ],
)
def test_an_error_body_of_any_shape_gives_one_line(body, text):
    assert error_message(body) == text
