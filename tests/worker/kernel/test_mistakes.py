"""What a cell breaks around itself (streams, event loop, its own exceptions): the kernel lives on."""

from __future__ import annotations

import math
import os

import pytest

from rlm_wire.errors import CallError

STREAM = """
import sys
class Stream:
    closed = False
    def write(self, text): {write}
    def flush(self): {flush}
sys.{name} = Stream()
"""

RAISING = """
class Text(str):
    def __getitem__(self, index): raise RuntimeError
    def encode(self, *_): return 7
    def __len__(self): return 10**9
class Hostile(Exception):
    def __str__(self): {answer}
raise Hostile
"""


@pytest.mark.parametrize(
    "code",
    [
        "import sys; del sys.stdout",
        "import sys; sys.stdout = sys.stderr = None",
        STREAM.format(name="stdout", write="pass", flush="raise SystemExit(5)"),
        STREAM.format(name="stdout", write="pass", flush="pass").replace("closed = False", "closed = property(exit)"),
    ],
)
def test_whatever_a_cell_makes_of_its_streams_the_next_one_runs(agent, code):
    agent.ok("kept = 1")
    agent(code)
    assert agent.ok("kept").result == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.modules.clear()",
        "get_ipython().input_transformers_cleanup.append(None)",
        "get_ipython().__class__.run_code = None",
    ],
)
def test_a_kernel_in_which_no_cell_can_run_any_more_gives_way_to_a_fresh_one(agent, code):
    agent(code)
    broken = agent("kept = 1")
    assert broken.status == "kernel_died"
    assert broken.output.text.startswith("An earlier cell broke what runs cells")
    assert agent.ok("6 * 7").result == "42"


@pytest.mark.parametrize("code", ["f(", "  x", "x = 1\0", "(" * 5000 + ")" * 5000])
def test_code_that_is_none_costs_no_kernel(agent, code):
    agent.ok("kept = 1")
    assert agent(code).status == "error"
    assert agent.ok("kept").result == "1"


def test_streams_that_a_cell_removed_are_there_again_for_the_next(agent):
    agent("import sys; del sys.stdout")  # IPython itself misses it at the end
    assert agent.ok("print('heard')").output.text == "heard\n"


@pytest.mark.parametrize("answer", ["return Text('x')", "raise SystemExit(3)", "raise KeyboardInterrupt", "return 7"])
def test_an_exception_with_a_hostile_text_ends_its_cell_only(agent, answer):
    agent.ok("kept = 1")
    assert agent(RAISING.format(answer=answer)).status in ("error", "interrupted")
    assert agent.ok("kept").result == "1"


def test_a_background_task_that_exits_ends_itself_only_even_if_nothing_can_be_printed(agent, tmp_path):
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    agent.ok(STREAM.format(name="stderr", write="raise SystemExit(6)", flush="pass"))
    agent.ok(
        f"import asyncio\nasync def leave():\n    open({str(begun)!r}, 'w').close()\n    raise SystemExit(4)\n"
        "kept = asyncio.create_task(leave())"
    )
    begun.read_bytes()
    assert agent.ok("kept.done()").result == "True"


@pytest.mark.parametrize("code", ["asyncio.get_event_loop()._selector.close()", "asyncio._set_running_loop(object())"])
def test_an_event_loop_that_a_cell_broke_is_replaced_and_a_notice_says_so(agent, code):
    agent.ok(f"import asyncio; {code}")
    result = agent.ok("await asyncio.sleep(0, 'works')")
    assert result.result == "'works'"
    assert [notice for notice in result.notices if "event loop" in notice]
    assert len(result.output.text) == 0
    assert agent.ok("asyncio.create_task(asyncio.sleep(0)); 1").notices == []


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_cell_whose_timeout_is_not_positive_is_refused_and_not_run(agent, timeout):
    with pytest.raises(CallError, match="positive") as caught:
        agent("ran = True", timeout=timeout)
    assert caught.value.code == "invalid_argument"
    assert agent("ran").error.name == "NameError"


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("%%bash\nexit 3", "CalledProcessError: Command 'bash' returned non-zero exit status 3."),
        ("input()", "EOFError: input() has nobody to ask"),
        ("def ask():\n    breakpoint()\nask()", "RuntimeError: breakpoint() has no terminal here."),
    ],
)
def test_a_traceback_ends_in_the_users_code_without_a_frame_of_the_kernels_own(agent, code, last):
    traceback = agent(code).error.traceback
    assert "Cell In[1], line 1" in traceback or "Cell In[1], line 2, in ask()" in traceback
    assert traceback.splitlines()[-1].startswith(last)
    assert "rlm_worker" not in traceback
    assert "site-packages" not in traceback
