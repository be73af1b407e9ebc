import pytest

from rlm_harness.decisions import Finish, Nudge, Nudges, Refuse, Run, looks_like_plan, next_step
from rlm_harness.model.interface import Reply, ToolCall
from rlm_harness.tools import (
    EXEC_TIMEOUT,
    MAX_EXEC_TIMEOUT,
    TOOL_SCHEMAS,
    ArgumentError,
    Bash,
    Edit,
    Fetch,
    Ipython,
    parse_arguments,
    parsed_or_error,
)


def call(name, arguments, call_id="a"):
    return ToolCall(call_id, name, arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "parsed"),
    [
        ("bash", '{"command": "ls"}', Bash("ls")),
        ("bash", '{"command": "ls", "why": "curious"}', Bash("ls")),
        ("ipython", '{"code": "1", "timeout": 5}', Ipython("1", 5)),
        ("ipython", '{"code": "", "timeout": "soon"}', Ipython("", "soon")),
        ("edit", '{"path": "a", "old_str": "b", "new_str": ""}', Edit("a", "b", "")),
        ("fetch", '{"url": "a"}', Fetch("a", 20_000)),
    ],
)
def test_good_arguments_are_run(name, arguments, parsed):
    step = next_step(Reply("", [call(name, arguments)], "tool_calls"), Nudges())
    assert step == Run(call(name, arguments), parsed)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("shell", "{}", "unknown tool 'shell'; the tools are ipython, bash, edit, fetch"),
        ("bash", '{"command":\n "a', "the arguments of bash are not JSON: .* at line 2, column 2"),
        ("bash", "", "the arguments of bash are not JSON: .* at line 1, column 1"),
        ("bash", "[" * 100_000, "the arguments of bash do not fit: Expected `object`"),
        ("bash", '{"x":' + "[" * 100_000, "the arguments of bash are not JSON: nested too deeply"),
        ("bash", '{"command": "\\ud800"}', "the arguments of bash are not JSON"),
        ("bash", '["ls"]', "the arguments of bash do not fit: Expected `object`"),
        ("bash", "{}", "the arguments of bash do not fit: .*`command`"),
        ("bash", '{"command": 3}', r"the arguments of bash do not fit: .*\$\.command"),
        ("bash", '{"command": " \\n"}', "empty command"),
        ("edit", '{"path": "a", "old_str": "b"}', "the arguments of edit do not fit: .*`new_str`"),
        ("fetch", '{"url": "a", "max_chars": 0}', "the arguments of fetch do not fit"),
    ],
)
def test_bad_arguments_are_answered_with_what_to_mend(name, arguments, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        parse_arguments(call(name, arguments))
    reply = Reply("", [call(name, arguments)])
    assert next_step(reply, Nudges()) == Refuse(reply.tool_calls, f"Error: {caught.value}")
    assert parsed_or_error(reply.tool_calls[0]) == {"name": name, "error": str(caught.value)}


def test_of_two_calls_none_is_run():
    calls = [call("bash", '{"command": "ls"}', "a"), call("bash", '{"command": "ls"}', "b")]
    step = next_step(Reply("", calls), Nudges())
    assert isinstance(step, Refuse)
    assert step.calls == calls
    assert "only one tool call per turn" in step.text


@pytest.mark.parametrize(
    ("text", "reason", "stop"),
    [("Done.", "stop", "answered"), ("Half a sent", "length", "length"), ("", "length", "length")],
)
def test_a_reply_without_calls_ends_the_prompt(text, reason, stop):
    assert next_step(Reply(text, [], reason), Nudges()) == Finish(stop)


def test_an_empty_reply_is_nudged_twice():
    first = next_step(Reply(" \n"), Nudges())
    assert isinstance(first, Nudge)
    second = next_step(Reply(""), first.nudges)
    assert isinstance(second, Nudge)
    assert next_step(Reply(""), second.nudges) == Finish("empty")


def test_a_plan_is_nudged_once():
    first = next_step(Reply("Let me look at the tests."), Nudges())
    assert (first.kind, first.nudges) == ("plan_reply", Nudges(plan=1))
    assert next_step(Reply("Let me look at the tests."), first.nudges) == Finish("answered")


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("Let me see", True),
        ("I'll run it now.", True),
        ("next, I fix it", True),
        ("The steps are:", True),
        ("x" * 400 + ":", True),
        ("Letter of the law.", False),
        ("Let me " + "see " * 100, False),
        ("All tests pass.", False),
        ("I will" + "y", False),
    ],
)
def test_what_looks_like_a_plan(text, plan):
    assert looks_like_plan(text) is plan


def test_the_schemas_name_what_the_parser_takes():
    for schema in TOOL_SCHEMAS:
        function = schema["function"]
        required = function["parameters"]["required"]
        arguments = dict.fromkeys(required, "x")
        parsed = parse_arguments(call(function["name"], str(arguments).replace("'", '"')))
        assert set(function["parameters"]["properties"]) == set(parsed.__struct_fields__)
    assert f"at most {MAX_EXEC_TIMEOUT}" in str(TOOL_SCHEMAS[0])
    assert str(EXEC_TIMEOUT) in str(TOOL_SCHEMAS[1])
