"""How child agents look at a terminal."""

from itertools import count

import trio

from rlm_harness.agent_tree import AgentTree, fit
from rlm_harness.display import REFRESH, TerminalDisplay, TerminalView
from rlm_harness.events import (
    AgentChanged,
    AgentSpawned,
    AssistantReplied,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnStarted,
    Usage,
)
from rlm_harness.panel import Panel

KID = AgentSpawned("", "kid", 1, "look\nat it", "/l", agent="sub-1")
LEAF = AgentSpawned("sub-1", None, 2, "deeper", "/l", agent="sub-2")
WORK = [
    AgentChanged("running", agent="sub-1"),
    TurnStarted(1, agent="sub-1"),
    AssistantReplied(1, "", "tool_calls", Usage(1000, 234), 0.5, agent="sub-1"),
    ToolStarted(1, "c", "ipython", {"code": "\nx = 7\ny"}, agent="sub-1"),
]


def test_each_agent_that_has_not_ended_has_a_line_below_its_parents():
    tree = AgentTree()
    for second, event in enumerate([KID, *WORK, LEAF]):
        tree.take(event, float(second))
    other = AgentSpawned("", None, 1, "x", "/l", agent="sub-3")
    tree.take(other, 6.0)
    tree.take(AgentChanged("idle", agent="sub-3"), 7.0)
    assert tree.lines(9.0, 10) == [
        "agents: 2 at work, 1 idle, 0 ended · 1,234 tokens",
        "  kid running · 1 turn · 1,234 tokens · 9 s · ▶ ipython x = 7",
        "    sub-2 starting · 0 turns · 4 s",
        "  sub-3 idle · 0 turns · 3 s",
    ]
    tree.take(ToolFinished("c", "ipython", "ok", "", "", 0.1, agent="sub-1"), 9.0)
    assert tree.lines(9.0, 3) == [
        "agents: 2 at work, 1 idle, 0 ended · 1,234 tokens",
        "  kid running · 1 turn · 1,234 tokens · 9 s",
        "  and 2 more",
    ]
    for agent in ("sub-1", "sub-2", "sub-3"):
        tree.take(AgentChanged("completed", agent=agent), 10.0)
    assert tree.lines(11.0, 10) == []


def test_a_child_is_told_of_when_it_begins_and_ends_and_its_work_is_not_mixed_with_its_parents():
    ticks = count()
    view = TerminalView(colour=False, clock=lambda: float(next(ticks)))
    events = [
        TextDelta("I "),
        KID,
        *WORK,
        TextDelta("not shown", agent="sub-1"),
        AgentChanged("completed", "answered", "seven\nindeed", agent="sub-1"),
        LEAF,
        AgentChanged("failed", error="no such model", agent="sub-2"),
    ]
    assert "".join(map(view.render, events)) == (
        "I \n"
        "+ kid: look\n"
        "- kid completed · 1 turn · 1,234 tokens · 6 s: seven\n"
        "  + sub-2: deeper\n"
        "  - sub-2 failed · 0 turns · 1 s: no such model\n"
    )


def test_the_panel_is_drawn_below_what_stays_and_gone_while_a_line_is_open():
    panel = Panel(colour=False)
    assert panel.compose("text\n", ["a", "b"], open_line=False) == "text\na\nb\n"
    assert panel.compose("", ["a", "b"], open_line=False) == ""
    assert panel.compose("", ["a"], open_line=False) == "\r\x1b[2A\x1b[Ja\n"
    assert panel.compose("more", ["a"], open_line=True) == "\r\x1b[1A\x1b[Jmore"
    assert panel.compose(" of it\n", ["a"], open_line=False) == " of it\na\n"
    assert panel.compose("", [], open_line=False) == "\r\x1b[1A\x1b[J"


async def test_a_terminal_shows_the_agents_and_keeps_their_times_fresh(autojump_clock):
    written, columns = [], 24

    async def write(text):
        written.append(text)

    display = TerminalDisplay(write, colour=False, size=lambda: (columns, 5))
    for event in (KID, *WORK):
        await display.show(event)
    assert written[-1].splitlines()[-1] == "  kid running · 1 turn ·"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(display.keep_fresh)
        count = len(written)
        await trio.sleep(REFRESH * 1.5)
        columns = 5
        await trio.sleep(REFRESH)
        assert written[count:] == ["\r\x1b[2A\x1b[Jagent\n  kid\n"]
        nursery.cancel_scope.cancel()
    await display.show(AgentChanged("completed", agent="sub-1"))
    assert written[-1].startswith("\r\x1b[2A\x1b[J- kid completed")


def test_lines_are_cut_by_the_columns_they_take():
    assert fit("abc", 3) == "abc"
    assert fit("abcd", 3) == "abc"
    assert fit("世界", 3) == "世"
    assert fit("e\u0301x", 1) == "e\u0301"
