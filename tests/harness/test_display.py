import json
import os

import pytest
import trio

from rlm_harness.display import SHOWN_LINES, SHOWN_OUTPUT, JsonDisplay, TerminalView, json_line, printable, write_to
from rlm_harness.events import (
    AssistantReplied,
    Cancelling,
    Nudged,
    Reconnected,
    Reconnecting,
    Retrying,
    SessionEnded,
    SessionStarted,
    TextDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnStarted,
    Usage,
    Verdict,
)

EVERY = [
    SessionStarted("0123", "m", "/w", "rlm-worker 0.1", "/l/messages.jsonl"),
    TurnStarted(1),
    TextDelta("I look."),
    Retrying("HTTP 429", 2.5, 2),
    AssistantReplied(1, "I look.", "tool_calls", Usage(10, 3), 1.5),
    ToolStarted(1, "a", "bash", {"command": "ls\npwd"}),
    ToolOutput("a", "one\ntw"),
    ToolOutput("a", "o\n"),
    ToolFinished("a", "bash", "ok", "", "one\ntwo\n", 0.02, exit_code=0),
    ToolFinished("b", "bash", "ok", "[exit code 3]", "[exit code 3]", 0.02, exit_code=3),
    ToolFinished("c", "bash", "timed_out", "too long", "too long", 300.0),
    Nudged("plan_reply", "go on"),
    Cancelling(),
    Reconnecting("the connection to unix:/run/rlm.sock broke"),
    Reconnected(),
    SessionEnded("answered", "done", 2, Usage(20, 6), 3.2, "/l/messages.jsonl", notices=["pid 7 runs on"]),
    Verdict(True, ["tests: 9 passed"]),
]


def rendered(*events, colour=False):
    view = TerminalView(colour=colour)
    return "".join(view.render(event) for event in events)


def test_a_session_reads_like_this():
    rule = "─" * 40
    assert rendered(*EVERY) == (
        "model m · workspace /w · rlm-worker 0.1\n"
        f"\n── turn 1 {rule}\n"
        "I look.\n"
        "! HTTP 429; attempt 2 in 2.5 s\n"
        "(1.5 s, 10 + 3 tokens)\n"
        "▶ bash\n"
        "  │ ls\n"
        "  │ pwd\n"
        "  one\n"
        "  two\n"
        "✓ bash ok in 20 ms\n"
        "  [exit code 3]\n"
        "✗ bash exit 3 in 20 ms\n"
        "  too long\n"
        "✗ bash timed out in 300.0 s\n"
        "! reminded the model (plan reply)\n"
        "! cancelling the turn; Ctrl-C again leaves at once\n"
        "! no connection to the worker, trying again: the connection to unix:/run/rlm.sock broke\n"
        "! connected to the worker again\n"
        "\n── answered · 2 turns · 3.2 s · 26 tokens\n"
        "ledger: /l/messages.jsonl\n"
        "! pid 7 runs on\n"
        "\nPASSED\n"
        "  tests: 9 passed\n"
    )


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ("length", "the model's reply was cut at its token limit · 1 turn"),
        ("max_turns", "no answer before the last turn"),
        ("empty", "the model had nothing to say"),
        ("refused", "the endpoint refused the request"),
        ("workspace_lost", "the workspace was lost"),
        ("error", "the session could not go on"),
        ("cancelled", "── cancelled"),
    ],
)
def test_the_last_lines_say_how_a_session_without_an_answer_ended(stop, words):
    assert words in rendered(SessionEnded(stop, "", 1, Usage(), 3.2, "/l/messages.jsonl"))


def test_without_colour_there_is_no_escape_and_with_it_the_text_is_the_same():
    plain, coloured = rendered(*EVERY), rendered(*EVERY, colour=True)
    assert "\x1b" not in plain
    assert coloured != plain
    assert printable(coloured) == plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;aGk=\x07clip", "clip"),
        ("\x1b]0;title\x1b\\x", "x"),
        ("50%\r100%\n", "50%100%\n"),
        ("a\x00\x07\x08\x9b31mb\x7f", "a31mb"),
        ("tab\tand\nline ä 😀", "tab\tand\nline ä 😀"),
        ("\x1b", ""),
    ],
)
def test_nothing_that_a_terminal_would_obey_comes_through(text, shown):
    assert printable(text) == shown
    assert "\x1b" not in rendered(TextDelta(text), ToolStarted(1, "a", text, {"url": text}), Nudged(text, ""))


def test_a_flood_is_cut_off_on_the_screen_only():
    shown = rendered(ToolStarted(1, "a", "bash", {"command": "yes"}), *[ToolOutput("a", "y\n" * 8192)] * 20)
    assert len(shown) < 3 * SHOWN_OUTPUT
    assert shown.count("more output is not shown") == 1


def test_long_requests_and_notes_are_shortened():
    code = "\n".join(str(number) for number in range(100))
    shown = rendered(ToolStarted(1, "a", "ipython", {"code": code}))
    assert f"[{100 - SHOWN_LINES} more lines]" in shown
    assert "\n  │ 99" not in shown


def test_each_event_is_one_json_object_that_names_its_type():
    lines = [json.loads(json_line(event, 1.25)) for event in EVERY]
    assert [line["event"] for line in lines][:4] == ["session_started", "turn_started", "text_delta", "retrying"]
    assert all(line["at"] == 1.25 for line in lines)
    assert json_line(TextDelta("a\nb\u2028"), 0).count("\n") == 1


async def test_what_is_written_arrives_in_order_and_whole():
    reading, writing = os.pipe()
    display = JsonDisplay(write_to(writing))
    received = b""

    async def read():
        nonlocal received
        async with trio.lowlevel.FdStream(reading) as stream:
            async for data in stream:
                received += data

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for number in range(20):
                await display.show(TextDelta(f"{number}" * 10_000))
            os.close(writing)
    assert [json.loads(line)["text"] for line in received.splitlines()] == [f"{n}" * 10_000 for n in range(20)]


async def test_a_reader_that_is_gone_is_an_error():
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        await write_to(writing)("hello")
    os.close(writing)


async def test_a_reader_that_does_not_read_can_be_left():
    reading, writing = os.pipe()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_to(writing), "x" * 1_000_000)
            await trio.lowlevel.wait_readable(reading)
            nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught
    os.close(reading)
    os.close(writing)
