"""Where a cell's output goes: exactly into its own result, whoever wrote it, however it ended."""

from __future__ import annotations

import os

import pytest
import trio

from rlm_wire.methods.tools import OutputChunk

C_PUTS = "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.puts(b'from C')"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print('plain')", b"plain\n"),
        ("print('no newline', end='')", b"no newline"),
        ("import os\nos.write(1, b'garbage\\n')\nos.write(2, b'\\xff\\x00')", b"garbage\n\xff\x00"),
        (C_PUTS, b"from C\n"),
        ("import ctypes\nctypes.CDLL(None).printf(b'no newline in C')", b"no newline in C"),
        ("import os\nos.system('echo from a shell')", b"from a shell\n"),
        ("import subprocess\nsubprocess.run(['echo', 'from a child'])", b"from a child\n"),
        ("import warnings\nwarnings.warn('careful')", b"careful"),
        ("import logging\nlogging.warning('logged')", b"WARNING:root:logged\n"),
        ("import threading\nt = threading.Thread(target=print, args=(1,))\nt.start(); t.join()", b"1\n"),
        ("import sys\nsys.stderr.write('on stderr')", b"on stderr"),
        ("import sys\nsys.stdout.buffer.write(b'raw'); sys.stdout.flush()", b"raw"),
        ("print('lone \\ud800')", b"lone \\ud800\n"),
        ("import faulthandler\nfaulthandler.dump_traceback(1)", b"File"),
        ("for fd in range(3, 2000):\n    try: os.write(fd, b'junk')\n    except (OSError, NameError): pass", b""),
    ],
)
def test_b16_whatever_is_printed_is_output_and_never_touches_the_protocol(agent, code, output):
    result = agent(code)
    assert output in result.output.head
    if not code.startswith("for fd"):  # that one aims at the protocol's own descriptor: the kernel may not survive it
        assert result.status == "ok"
        assert [agent.ok(str(n)).result for n in range(100)] == [str(n) for n in range(100)]


def test_print_c_code_and_commands_keep_their_order(agent):
    agent.ok(C_PUTS)
    result = agent.ok(
        "print('1', end=' ')\nlibc.puts(b'2')\n!echo 3\nprint('4')\nlibc.puts(b'5')\nimport os\nos.system('echo 6')"
    )
    assert result.output.text == "1 2\n3\n4\n5\n6\n"


def test_output_belongs_to_the_cell_that_wrote_it(agent):
    for number in range(50):
        assert agent.ok(f"print({number})\n!echo {number}").output.text == f"{number}\n{number}\n"


def test_a_large_output_keeps_head_tail_and_exact_totals(agent):
    output = agent.ok("!seq 1 2000000").output
    assert (output.lines, output.bytes, output.chars) == (2_000_000, 14_888_896, 14_888_896)
    assert output.head.startswith(b"1\n2\n")
    assert output.tail.endswith(b"1999999\n2000000\n")
    assert output.omitted == output.bytes - len(output.head) - len(output.tail)


def test_what_is_written_between_cells_opens_the_next_cells_output(agent, tmp_path):
    gate, written = tmp_path / "gate", tmp_path / "written"
    os.mkfifo(gate)
    os.mkfifo(written)
    first = agent.ok(
        "import threading\n"
        f"def late():\n    open({str(gate)!r}).read()\n    print('late')\n    open({str(written)!r}, 'w').close()\n"
        "t = threading.Thread(target=late)\nt.start()\nprint('first')"
    )
    assert first.output.text == "first\n"
    gate.write_text("go")
    written.read_bytes()
    second = agent.ok("print('second')")
    assert second.output.text == "late\nsecond\n"
    assert "first 5 bytes" in second.notices[0]
    assert agent.ok("print('third')").output.text == "third\n"


def test_a_cell_ends_although_a_background_writer_never_stops(agent):
    result = agent.ok("import subprocess\nprint('started')\np = subprocess.Popen(['yes'])")
    assert result.output.text.startswith("started\n")
    agent.ok("p.kill(); p.wait()")
    agent.ok("1")
    assert agent.ok("print('quiet')").output.text.endswith("quiet\n")


def test_live_output_arrives_while_the_cell_runs_and_is_all_of_it(agent, workshop, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    seen = bytearray()

    async def on_output(chunk: OutputChunk) -> None:
        seen.extend(chunk.data)
        if b"waiting" in seen and b"opened" not in seen:  # the cell cannot end before this has been seen
            await trio.to_thread.run_sync(gate.write_text, "opened")

    async def run():
        code = f"print('waiting')\nprint(open({str(gate)!r}).read())"
        return await workshop.kernels.execute(agent.name, code, on_output=on_output)

    result = workshop.run(run)
    assert result.output.text == seen.decode() == "waiting\nopened\n"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import os\nos.close(1); os.close(2); print(1)", ""),
        ("import sys\nsys.stdout.close(); sys.stderr.close()", ""),
        ("import sys\nsys.stdout = sys.stderr = None", ""),
        ("import os, sys\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nprint('lost')", ""),
        ("import sys, io\nsys.stdout = io.StringIO()\nprint('kept')", ""),
        ("import os\nos.closerange(1, 200)", ""),
    ],
)
def test_b31_closed_or_redirected_streams_are_mended_for_the_next_cell(agent, code, output):
    assert agent(code).output.text == output
    assert agent("").output.text == ""
    agent.ok("import sys\nif type(sys.stdout).__name__ == 'StringIO': sys.stdout = sys.__stdout__")
    assert agent.ok("print('here')\n!echo there").output.text == "here\nthere\n"


def test_b57_output_so_far_survives_a_timeout_and_a_death(agent):
    code = "import time\nprint('no newline', end='')\ntime.sleep(3600)"
    result = agent(code, timeout=0.3)
    assert (result.status, result.output.text) == ("timed_out", "no newline")
    assert result.duration >= 0.3
    result = agent("import os\nprint('last words', end='')\nos._exit(1)")
    assert (result.status, result.output.text) == ("kernel_died", "last words")
    assert agent.ok("'alive'").result == "'alive'"
