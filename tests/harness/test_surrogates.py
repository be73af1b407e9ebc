"""Halves of characters in what a model says become U+FFFD, wherever they stand; the session goes on."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_harness.model.interface import ToolCall
from rlm_harness.model.streaming import MalformedReply, ReplyAssembler, error_message
from rlm_harness.surrogates import decode, without_halves

ANY = msgspec.json.Decoder(Any)


def mended(value: Any) -> Any:
    """What the standard library reads, which keeps halves, with U+FFFD instead of them."""
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(json.loads(value), ensure_ascii=False)))


@settings(deadline=None)
@given(st.text(st.sampled_from('a\\"u\n0d\u4e00\U0001f600\ud800\udbff\udc00\udfff\ud83d\ude00')))
def test_each_half_becomes_one_character_and_nothing_else_changes(text: str) -> None:
    for value in (text, {text: [text, 1e-7, None]}, json.dumps(text)):
        written = json.dumps(value).encode()
        assert msgspec.json.decode(without_halves(written)) == mended(written)
        assert decode(ANY, written) == mended(written)


@settings(deadline=None)
@given(st.text(st.sampled_from('\\ud8c00"a')))
def test_what_is_no_json_is_none_afterwards(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(ANY, b'"' + text.encode() + b'"x')


def test_an_escaped_backslash_is_no_half() -> None:
    for data in (rb'"\\ud800"', rb'"\\\\udc00"', rb'"\ud83d\ude00"', b'"d800"'):
        assert without_halves(data) == data
    assert without_halves(rb'"\\\ud800"') == rb'"\\\ufffd"'
    assert without_halves(rb'"\\ud83d\ude00"') == rb'"\\ud83d\ufffd"'


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}).encode()


def test_a_reply_has_characters_instead_of_halves_of_them() -> None:
    arguments = json.dumps({"command": "echo \ud800\U0001f600 \\ud800"})
    function = {"name": "bash", "arguments": arguments[:18]}
    assembler = ReplyAssembler()
    assert assembler.feed(chunk(content="a\ud800b")) == "a\ufffdb"
    assembler.feed(chunk(tool_calls=[{"index": 0, "id": "c\udc00", "function": function}]))
    assembler.feed(chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments[18:]}}]))
    assembler.feed(chunk("tool_calls"))
    reply = assembler.reply()
    assert reply.text == "a\ufffdb"
    assert reply.tool_calls == [ToolCall("c\ufffd", "bash", arguments.replace(" \\ud800", " \\ufffd", 1))]
    assert msgspec.json.decode(reply.tool_calls[0].arguments) == {"command": "echo \ufffd\U0001f600 \\ud800"}
    msgspec.json.encode(reply.message)


def test_a_chunk_with_halves_of_characters_may_still_be_none() -> None:
    for data in (rb'{"choices":[{"delta":{"content":"\ud800"', rb'{"choices":"\ud800"}', b'{"choices":"\xed\xa0\x80"}'):
        with pytest.raises(MalformedReply, match="not a chat completion chunk"):
            ReplyAssembler().feed(data)


def test_an_error_may_have_halves_of_characters_too() -> None:
    assert error_message(rb'{"error":{"message":"no \ud800"}}') == "no \ufffd"


async def test_a_session_lives_on(model_server: Any, script: Any, command: Any) -> None:
    half = "printf %s 'x\ud800\U0001f600'"
    call = script.calls("bash", {"command": half}, text="first\udc00")
    model_server.answers = [call, script.says("se", "\ud83dcond")]
    done = await command.run()
    assert done.returncode == 0, done.stderr
    assert "se\ufffdcond" in done.stdout.decode()
    assert len(model_server.bodies) == 2
    for body in model_server.bodies:
        msgspec.json.decode(body)  # it is UTF-8, and has no halves
    *_, said, result = model_server.requests[-1]["messages"]
    assert said["content"] == "first\ufffd"
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"command": half.replace("\ud800", "\ufffd")}
    assert "x\ufffd\U0001f600" in json.dumps(result["content"], ensure_ascii=False)
