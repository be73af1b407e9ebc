import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_harness.rendering import (
    as_output,
    join,
    render_bash,
    render_cell,
    render_edit,
    render_failure,
    render_fetch,
    shorten,
)
from rlm_wire.errors import CallError
from rlm_wire.methods.kernels import CellError, CellResult, Display
from rlm_wire.methods.tools import BashResult, EditResult, FetchResult, Output

HALF = 512 * 1024


def captured(data: bytes, kept: int = HALF) -> Output:
    """What a capture reports of `data` if it keeps `kept` bytes at each end."""
    whole = len(data) <= 2 * kept
    return Output(
        head=data if whole else data[:kept],
        tail=b"" if whole else data[-kept:],
        bytes=len(data),
        chars=len(data.decode("utf-8", "replace")),
        lines=data.count(b"\n"),
        omitted=0 if whole else len(data) - 2 * kept,
    )


# ------------------------------------------------------------------ shortening


def test_what_fits_is_not_shortened():
    assert shorten(as_output("x" * 20_000)) is None


def test_one_byte_more_is():
    text = shorten(as_output("x" * 20_001))
    assert text.splitlines() == [
        "[Shortened: this output is about 5001 tokens long]",
        "[Total output lines: 1]",
        "",
        "x" * 10_000,
        "[... 1 bytes omitted ...]",
        "x" * 10_000,
    ]


@pytest.mark.parametrize(
    ("text", "limit", "head", "omitted", "tail"),
    [
        pytest.param("abcdef", 4, "ab", 2, "ef", id="even"),
        pytest.param("abcdef", 5, "ab", 1, "def", id="the odd byte goes to the tail"),
        pytest.param("aäöb", 4, "a", 4, "b", id="a character cut on each side is dropped whole"),
        pytest.param("äxxö", 4, "ä", 2, "ö", id="a character that ends at the cut stays"),
        pytest.param("😀y😀", 6, "", 9, "", id="nothing but halves"),
        pytest.param("a\nb\nc\n", 2, "a", 4, "\n", id="lines"),
    ],
)
def test_the_cut_falls_between_characters(text, limit, head, omitted, tail):
    shown = shorten(as_output(text), limit)
    body = shown.split("\n\n", 1)[1]
    assert body == f"{head}\n[... {omitted} bytes omitted ...]\n{tail}"


@pytest.mark.parametrize(("chars", "tokens"), [(9, 3), (12, 3), (13, 4)])
def test_tokens_are_characters_by_four_rounded_up_not_bytes(chars, tokens):
    assert f"about {tokens} tokens" in shorten(as_output("ä" * chars), 4)


def test_invalid_bytes_are_replaced_but_counted_as_they_are():
    shown = shorten(captured(b"\xff" * 10), 4)
    assert shown.split("\n\n", 1)[1] == "\ufffd\ufffd\n[... 6 bytes omitted ...]\n\ufffd\ufffd"[: len(shown)]


@settings(deadline=None)
@given(st.text(), st.integers(2, 40), st.integers(0, 4))
def test_a_capture_with_a_gap_is_shortened_like_the_whole(text, limit, more):
    data = text.encode("utf-8", "replace")
    assert shorten(captured(data, kept=limit + more), limit) == shorten(captured(data), limit)


@settings(deadline=None)
@given(st.text(), st.integers(2, 40))
def test_shortening_never_breaks_a_character_nor_exceeds_its_budget(text, limit):
    output = as_output(text.replace("\ufffd", "?"))
    shown = shorten(output, limit)
    if shown is not None:
        assert "\ufffd" not in shown
        head, _, tail = shown.split("\n\n", 1)[1].partition("\n[... ")
        tail = tail.partition(" bytes omitted ...]\n")[2]
        assert len((head + tail).encode()) <= limit


@settings(deadline=None)
@given(st.text(), st.text(min_size=1))
def test_what_is_joined_behind_an_output_is_counted_too(first, second):
    joined = join(as_output(first), second)
    assert joined == as_output(joined.text)
    assert joined.text.endswith(second)


def test_what_is_joined_behind_a_gap_goes_to_the_tail():
    output = captured(b"x" * 30, kept=10)
    joined = join(output, "[exit code 1]")
    assert (joined.head, joined.tail, joined.omitted) == (output.head, b"x" * 10 + b"\n[exit code 1]", 10)
    assert (joined.bytes, joined.lines) == (44, 1)


# --------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("result", "text", "status"),
    [
        (BashResult(0, as_output("hi\n")), "hi\n", "ok"),
        (BashResult(0, Output()), "(no output)", "ok"),
        (BashResult(3, as_output("no\n")), "no\n[exit code 3]", "ok"),
        (BashResult(3, as_output("no")), "no\n[exit code 3]", "ok"),
        (BashResult(1, Output()), "[exit code 1]", "ok"),
        (BashResult(None, as_output("a"), signal=9), "a\n[killed by signal 9]", "error"),
        (
            BashResult(None, as_output("a"), timed_out=True, signal=15),
            "a\nError: command timed out after 5 s and was stopped",
            "timed_out",
        ),
        (
            BashResult(None, as_output("a"), cancelled=True, signal=15),
            "a\n[the command was cancelled and stopped]",
            "cancelled",
        ),
        (BashResult(0, as_output("a"), notices=["pid 7 runs on"]), "a\n[pid 7 runs on]", "ok"),
    ],
)
def test_commands_are_rendered(result, text, status):
    rendered = render_bash(result, 5)
    assert (rendered.output.text, rendered.status) == (text, status)
    assert rendered.output.text.endswith(rendered.note)


@pytest.mark.parametrize(
    ("result", "text", "status"),
    [
        (CellResult("ok", as_output("hi\n"), result="2"), "hi\n2", "ok"),
        (CellResult("ok", Output()), "(no output)", "ok"),
        (CellResult("error", Output(), error=CellError("E", "m", "Traceback\nE: m")), "Traceback\nE: m", "error"),
        (
            CellResult("timed_out", as_output("a")),
            "a\n[execution timed out after 5 s and was interrupted]",
            "timed_out",
        ),
        (CellResult("interrupted", Output()), "[execution was cancelled and interrupted]", "cancelled"),
        (CellResult("kernel_died", Output()), "[the kernel ended during this cell; it is not run again]", "error"),
        (CellResult("not_run", Output()), "[this cell was not run]", "error"),
        (CellResult("ok", Output(), displays=[Display(binary={"image/png": b"1234"})]), "[image/png, 4 bytes]", "ok"),
    ],
)
def test_cells_are_rendered(result, text, status):
    rendered = render_cell(result, 5)
    assert (rendered.output.text, rendered.status) == (text, status)


def test_what_a_lost_kernel_took_with_it_is_told_apart_from_the_result():
    rendered = render_cell(CellResult("kernel_died", Output(), notices=["variables are lost"]), 5)
    assert rendered.recovery == ["variables are lost"]
    assert "variables" not in rendered.output.text


def test_edits_and_pages_are_rendered():
    assert render_edit(EditResult("/w/a.py", line=3)).output.text == "Edited /w/a.py: 1 replacement, at line 3"
    linked = render_edit(EditResult("/w/a.py", line=3, notices=["It had 2 hard links."])).output.text
    assert linked == "Edited /w/a.py: 1 replacement, at line 3\n[It had 2 hard links.]"
    page = FetchResult("http://a/", 404, "text/html", "gone", chars=9, bytes=9, truncated=True)
    assert render_fetch(page).output.text == "URL: http://a/ (HTTP 404)\n\ngone\n... [truncated at 4 of 9 chars]"


def test_a_failed_call_is_told_in_words():
    rendered = render_failure(CallError("not_found", "no such file: a.py"))
    assert (rendered.output.text, rendered.status) == ("Error: no such file: a.py", "error")
    assert render_failure(CallError("cancelled", "stopped")).status == "cancelled"
