"""What a cell can do, and what comes back: state, results, magics, shell escapes, event loops, errors."""

from __future__ import annotations

import os

import pytest


def test_names_imports_and_functions_live_on_from_cell_to_cell(agent):
    agent.ok("import math\nx = 20\ndef double(n):\n    return 2 * n")
    assert agent.ok("double(x) + math.floor(2.5)").result == "42"
    assert agent.ok("_ + 1").result == "43"
    assert agent.ok("Out[2], _i2").result == "(42, 'double(x) + math.floor(2.5)')"


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("1 + 1", "2"),
        ("1 + 1;", None),
        ("None", None),
        ("x = 1", None),
        ("", None),
        ("'ü\\ud800'", r"'ü\ud800'"),
        ("'\\ud800' * 2 + 'x'", r"'\ud800\ud800x'"),
        ("print('a') or 7", "7"),
        ("class A:\n    def __repr__(self): return 'lone \\ud800'\nA()", r"lone \ud800"),
        ("__name__", "'__main__'"),
        ("import pickle\nclass P: pass\ntype(pickle.loads(pickle.dumps(P()))) is P", "True"),
        ("%time 5", "5"),
        ("import sys; sys.argv, sys.path[0]", "([''], '')"),
    ],
)
def test_the_result_is_the_text_of_the_last_expression(agent, code, result):
    assert agent.ok(code).result == result


def test_b44_a_huge_result_becomes_a_preview_that_names_its_true_size(agent):
    result = agent.ok("'x' * 500_000_000").result
    assert result.startswith("'xxx")
    assert "length 500000000" in result
    assert len(result) < 1_200_000
    result = agent.ok("list(range(10**6)), [bytes(10**6)] * 100").result
    assert "characters in all" in result
    assert len(result) < 1_200_000
    error = agent("raise ValueError('y' * 100_000_000)").error
    assert error.name == "ValueError"
    assert len(error.message) + len(error.traceback) < 400_000
    assert "100000000 characters in all" in error.message
    assert agent.ok("1").result == "1"


def test_b47_deep_structures_harm_nobody_even_with_a_raised_recursion_limit(agent):
    agent.ok("import sys\nsys.setrecursionlimit(10**6)\ndeep = []\nfor _ in range(100_000): deep = [deep]")
    result = agent("deep")
    assert result.status in ("ok", "error")
    agent.ok("display({'application/json': deep}, raw=True)")
    assert agent.ok("sys.getrecursionlimit()").result == "1000000"


# --------------------------------------------------------------------------- event loops

B37 = {
    "asyncio.run": ("import asyncio\nasync def f(): return 'done'\nasyncio.run(f())", "'done'"),
    "trio.run": ("import trio\nasync def g():\n    await trio.sleep(0)\n    return 'done'\ntrio.run(g)", "'done'"),
    "anyio.run": ("import anyio\nasync def h():\n    await anyio.sleep(0)\n    return 'done'\nanyio.run(h)", "'done'"),
    "await": ("import asyncio\nawait asyncio.sleep(0, 'done')", "'done'"),
    "gather": ("await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))", "[1, 2]"),
    "run_until_complete": ("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 'done'))", "'done'"),
    "leftover": ("left = asyncio.create_task(asyncio.sleep(3600))", None),
    "closed loop": ("asyncio.get_event_loop().close()", None),
    "async for": ("async def n():\n    yield 1\n[i async for i in n()]", "[1]"),
    "task in thread": (
        "import threading, asyncio\nout = []\n"
        "t = threading.Thread(target=lambda: out.append(asyncio.run(asyncio.sleep(0, 'done'))))\n"
        "t.start(); t.join()\nout",
        "['done']",
    ),
}


def test_b37_every_kind_of_event_loop_works_after_every_other(agent):
    agent.ok("import asyncio")
    kinds = list(B37)
    for first in kinds:
        for second in (first, *kinds[kinds.index(first) + 1 :]):
            for kind in (first, second):
                code, result = B37[kind]
                assert agent.ok(code).result == result, (first, second)


def test_background_tasks_go_on_between_cells_and_are_awaited_later(agent, tmp_path):
    gate, answer = tmp_path / "gate", tmp_path / "answer"
    os.mkfifo(gate)
    os.mkfifo(answer)
    agent.ok(
        f"""
import asyncio
async def background():
    loop = asyncio.get_running_loop()
    said = await loop.run_in_executor(None, lambda: open({str(gate)!r}).read())
    await loop.run_in_executor(None, lambda: open({str(answer)!r}, "w").write(said.upper()))
    return "awaited"
task = asyncio.create_task(background())
"""
    )
    gate.write_text("between")  # no cell runs now: each of these would block for ever if the loop stood still
    assert answer.read_text() == "BETWEEN"
    assert agent.ok("await task").result == "'awaited'"


def test_a_background_task_that_exits_ends_neither_the_kernel_nor_the_next_cell(agent):
    agent.ok("import asyncio, sys\nkept = 1\nasync def leave(): sys.exit(3)\nt = asyncio.create_task(leave())")
    agent.ok("await asyncio.sleep(0)")
    assert agent.ok("kept").result == "1"


# --------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("code", "output", "result"),
    [
        ("!echo hi", "hi\n", None),
        ("!echo hi; exit 3\n_exit_code", "hi\n", "3"),
        ("!kill -9 $$\n_exit_code", "", "-9"),
        ("name = 'you'\n!echo $name {name.upper()}", "you YOU\n", None),
        ("x = !printf 'a\\nb\\n'\nx", "", "['a', 'b']"),
        ("x = !cat; echo $(wc -c)\nx", "", "['0']"),
        ("!cat; wc -c < /proc/self/fd/0", "0\n", None),
        ("!echo err >&2", "err\n", None),
        ("%%bash\necho one\ncat\necho two", "one\ntwo\n", None),
        ("%%bash --out got\necho inside", "", None),
        ("%%sh\necho $0", "sh\n", None),
        ("%%script python3\nprint(6 * 7)", "42\n", None),
        ("%%bash\n" + "#" * 200_000 + "\necho long", "long\n", None),
        ("print('a')\n!echo b\nprint('c')", "a\nb\nc\n", None),
        ("!sleep 3600 &\n_exit_code", "", "0"),
    ],
)
def test_shell_escapes_run_on_plain_pipes_with_an_empty_stdin(agent, code, output, result):
    done = agent.ok(code)
    assert (done.output.text, done.result) == (output, result)


def test_a_failing_script_cell_is_an_error_that_names_the_exit_code(agent):
    error = agent("%%bash\nexit 7").error
    assert error.name == "CalledProcessError"
    assert "exit status 7" in error.message
    assert agent("%%nosuchmagic\nx").error.name == "UsageError"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout",
        "import os\nos.read(0, 10)",
        "import sys\nsys.stdin.read().encode()",
        "!cat /dev/stdin\nb''",
    ],
)
def test_b13_stdin_of_a_cell_and_its_children_is_empty(agent, code):
    assert agent.ok(code).result == "b''"


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "name", "said"),
    [
        ("1 / 0", "ZeroDivisionError", "line 1"),
        ("x = (", "SyntaxError", "^"),
        ("if 1:\n    x = 1\n  y = 2", "IndentationError", "unindent"),
        ("undefined", "NameError", "undefined"),
        ("%nosuchmagic", "UsageError", "nosuchmagic"),
        ("raise ExceptionGroup('both', [ValueError(1), KeyError(2)])", "ExceptionGroup", "ValueError: 1"),
        ("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e", "KeyError", "ZeroDivisionError"),
        ("class A:\n    def __repr__(self): 1 / 0\nA()", "ZeroDivisionError", "__repr__"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E", "E"),
        ("def f(): f()\nf()", "RecursionError", "recursion"),
        ("bytearray(1 << 60)", "MemoryError", "MemoryError"),
        ("import asyncio\nawait asyncio.sleep(0)\n1 / 0", "ZeroDivisionError", "line 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("import json\njson.loads('{')", "JSONDecodeError", "json.loads"),
        ("eval('1 +')", "SyntaxError", "eval"),
        ("print(10**5000)", "ValueError", "digits"),
        ("10**5000", "ValueError", "digits"),
    ],
)
def test_an_error_comes_with_its_name_message_and_a_traceback_without_colours(agent, code, name, said):
    result = agent(code)
    assert result.status == ("interrupted" if name == "KeyboardInterrupt" else "error")
    assert result.error.name == name
    assert said in result.error.traceback
    assert "\x1b" not in result.error.traceback + result.output.text
    assert agent.ok("'usable'").result == "'usable'"


def test_a_traceback_has_no_colours_even_if_the_cell_asked_for_them(agent):
    agent.ok("%colors Linux")
    assert "\x1b" not in agent("1 / 0").error.traceback


def test_showing_the_last_traceback_again_is_not_an_error(agent):
    agent("1 / 0")
    assert "ZeroDivisionError" in agent.ok("%tb").output.text


def test_a_deep_traceback_shows_both_ends_and_says_what_it_leaves_out(agent):
    agent.ok("import sys; sys.setrecursionlimit(3000)\ndef f(n): return f(n - 1) if n else 1 / 0")
    traceback = agent("f(500)").error.traceback
    assert "f(500)" in traceback
    assert "division by zero" in traceback
    assert "frames in the middle were left out" in traceback


def test_every_expression_is_shown_if_ipython_is_told_so(agent):
    agent.ok("%config InteractiveShell.ast_node_interactivity = 'all'")
    assert agent.ok("1\n2").result == "1\n2"


@pytest.mark.parametrize(
    "magic",
    [
        "%debug",
        "%matplotlib inline",
        "%who",
        "%whos",
        "%cd .",
        "%env A=1",
        "%timeit -n1 -r1 1",
        "%load_ext autoreload",
        "%xmode Plain",
        "%reset -f",
        "%lsmagic",
        "%%capture c\nprint(1)",
        "%%time\n1",
        "len?",
        "help(len)",
        "help()",
    ],
)
def test_magics_that_a_notebook_knows_work_and_wait_for_nobody(agent, magic):
    agent("1 / 0")
    agent.ok(magic)
    assert agent.ok("1").result == "1"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("exit()", "ok"),
        ("get_ipython().ask_exit()", "ok"),
        ("quit()", "ok"),
        ("exit", "ok"),
        ("import sys; sys.exit()", "ok"),
        ("raise SystemExit(0)", "ok"),
        ("raise SystemExit(2)", "error"),
        ("exit(3)", "error"),
        ("import sys; sys.exit('reason')", "error"),
        ("import asyncio; await asyncio.sleep(0); exit()", "ok"),
    ],
)
def test_exit_in_all_its_forms_ends_only_the_cell(agent, code, status):
    agent.ok("kept = 1")
    result = agent(f"print('before')\n{code}\nprint('after')" if code != "exit" else code)
    assert result.status == status
    assert result.output.text == ("" if code == "exit" else "before\n")
    assert any("this cell only" in notice for notice in result.notices)
    assert agent.ok("kept").result == "1"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("input('name? ')", "EOFError"),
        ("import getpass; getpass.getpass()", "EOFError"),
        ("breakpoint()", "RuntimeError"),
        ("import pdb; pdb.set_trace()", "BdbQuit"),
        ("open('/dev/tty')", "OSError"),
    ],
)
def test_b14_a_question_fails_at_once_since_nobody_can_answer_it(agent, code, name):
    result = agent(code)
    assert result.status == "error"
    assert result.error.name == name


# --------------------------------------------------------------------------- processes and threads


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("import os\npid = os.fork()\nif pid == 0: os._exit(5)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", "5"),
        ("import os\npid = os.fork()\nif pid: pid = os.waitpid(pid, 0)[1]\npid", "0"),
        (
            "import multiprocessing as m\nq = m.get_context('fork').SimpleQueue()\n"
            "p = m.get_context('fork').Process(target=q.put, args=(8,))\np.start(); p.join()\nq.get(), p.exitcode",
            "(8, 0)",
        ),
        (
            "import concurrent.futures as c, multiprocessing as m\n"
            "with c.ProcessPoolExecutor(2, mp_context=m.get_context('fork')) as pool:\n"
            "    got = list(pool.map(abs, [-1, -2]))\ngot",
            "[1, 2]",
        ),
        ("import threading\nt = threading.Thread(target=print, args=('in thread',))\nt.start(); t.join()\n9", "9"),
        ("import subprocess\nsubprocess.run(['true']).returncode", "0"),
        ("import os\nos.system('exit 3') >> 8", "3"),
    ],
)
def test_forks_threads_and_subprocesses_work_and_the_next_cell_too(agent, code, result):
    assert agent.ok(code).result == result
    assert agent.ok("'still here'").result == "'still here'"
