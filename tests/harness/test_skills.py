"""Skills in cells: the worker's own, and those that the harness answers; how they look, fail and count."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import rlm_wire
from rlm_harness import AgentTools, Workspace, calling_agent
from rlm_harness.secrets import UserError
from rlm_harness.skills import table
from rlm_harness.skills.names import identifier
from rlm_harness.skills.table import SkillTable
from rlm_wire.errors import CallError
from rlm_wire.methods.skills import Parameter, RemoteSkill, Skills

ECHO = RemoteSkill(
    "echo",
    "Say it again.",
    [
        Parameter("times", "int", required=False, default=1),
        Parameter("text", "str", description="what to say"),
        Parameter("from", "str", required=False),
        Parameter("or_null", "str | None", required=False, nullable=True),
    ],
)


async def echo(arguments: dict[str, Any]) -> str:
    if arguments["text"] == "fail":
        raise CallError("internal", "it failed")
    return f"{calling_agent()} {sorted(arguments.items())}"


@asynccontextmanager
async def opened(url: str, cwd: Path, **skills: Skills) -> AsyncIterator[dict[str, AgentTools]]:
    """Agents of these names, with these skills."""
    service = rlm_wire.Service()
    all_skills().register(service)
    async with AsyncExitStack() as stack:
        workspace = await stack.enter_async_context(Workspace.connect(url, cwd=str(cwd), service=service))
        yield {
            name: await stack.enter_async_context(workspace.agent(name, skills=theirs))
            for name, theirs in skills.items()
        }


def all_skills() -> SkillTable:
    skills = SkillTable()
    skills.add(ECHO, echo, "the test's echo")
    return skills


@pytest.fixture
async def agent(worker_url: str, tmp_path: Path) -> AsyncIterator[AgentTools]:
    async with opened(worker_url, tmp_path, one=all_skills().skills()) as agents:
        yield agents["one"]


async def value(agent: AgentTools, code: str) -> str:
    """What a cell that must succeed shows as its last expression, or prints."""
    cell = await agent.ipython(code, timeout=60)
    assert cell.status == "ok", (cell.error, cell.output.text, cell.notices)
    return cell.result or cell.output.text


async def failure(agent: AgentTools, code: str) -> str:
    cell = await agent.ipython(code, timeout=60)
    assert cell.error is not None, cell
    return f"{cell.error.name}: {cell.error.message}"


async def test_local_skills_are_modules_to_be_called_from_any_code(agent: AgentTools, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.txt").write_text("one two")
    edited = await value(agent, "import os; os.chdir('deeper')\nprint(await edit('a.txt', 'one', 'three'))")
    assert edited == f"Edited {tmp_path}/deeper/a.txt: 1 replacement, at line 1\n"
    assert await value(agent, "print(edit.run('a.txt', old_str='two', new_str='four'))") == edited
    assert (tmp_path / "deeper" / "a.txt").read_text() == "three four"
    both = await value(agent, "print(await bash('pwd'), await bash('cat a.txt'), sep='')")
    assert both == f"{tmp_path}/deeper\nthree four\n"
    assert await value(agent, "import edit as e\ne is edit, type(e).__mro__[1].__name__") == "(True, 'module')"
    signatures = await value(agent, "import inspect\n[str(inspect.signature(s)) for s in (edit, bash.run, fetch)]")
    assert "(path: 'str', old_str: 'str', new_str: 'str') -> 'str'" in signatures
    assert "(command: 'str', timeout: 'float' = 120) -> 'str'" in signatures
    assert "(url: 'str', *, max_chars: 'int' = 20000) -> 'str'" in signatures
    assert "Run `command` in a fresh bash" in await value(agent, "help(bash)")
    assert await value(agent, "%reset -f\nbash('echo $((6*7))')") == "'42\\n'"
    assert await value(agent, "%who") == "Interactive namespace is empty.\n"


async def test_local_skills_fail_as_a_model_expects(agent: AgentTools, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one one")
    (tmp_path / "b.bin").write_bytes(b"\xff")
    assert "ValueError: the text to replace occurs 2 times" in await failure(agent, "edit('a.txt', 'one', 'x')")
    assert "ValueError: " in await failure(agent, "await edit('b.bin', 'one', 'x')")
    assert "FileNotFoundError: " in await failure(agent, "edit('c.txt', 'one', 'x')")
    assert await value(agent, "print(bash('echo a; exit 3'))") == "a\n[exit code 3]\n"
    assert await value(agent, "print(bash('kill -9 $$'))") == "[killed by signal 9]\n"
    assert await value(agent, "print(bash('true'))") == "(no output)\n"
    assert await value(agent, "print(bash('echo a; sleep 100', timeout=1))") == "a\nError: command timed out after 1s\n"
    assert "invalid_argument: empty command" in await failure(agent, "bash(' ')")
    clipped = await value(agent, "x = bash('yes | head -c 100000')\nlen(x), x[14990:15036], x[:2], x[-2:]")
    assert clipped == r"(30036, 'y\ny\ny\ny\ny\n\n[... 70000 characters omitted ...]\n', 'y\n', 'y\n')"
    assert await value(agent, "print(fetch('ftp://x'))") == "Error: only http and https URLs can be fetched\n"


async def test_an_interrupted_cell_takes_its_bash_along(agent: AgentTools, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    async with agent.open_ipython("bash('echo begun > begun; exec sleep 1234')", timeout=60) as call:
        assert await trio.to_thread.run_sync((tmp_path / "begun").read_text, abandon_on_cancel=True) == "begun\n"
        assert await agent.interrupt()
        cell = await call.result()
    assert cell.error is not None
    assert cell.error.name == "KeyboardInterrupt"
    assert await value(agent, "print(bash('pgrep -f [s]leep.1234'))") == "[exit code 1]\n"


async def test_an_agent_has_the_skills_it_was_opened_with(worker_url: str, tmp_path: Path) -> None:
    async with opened(worker_url, tmp_path, none=Skills(), some=Skills(["bash"])) as agents:
        assert "NameError" in await failure(agents["none"], "edit.run")
        assert "ModuleNotFoundError" in await failure(agents["none"], "import echo")
        call = "rlm.call('tools.bash', agent='', command='true')"
        assert "Refused: permission_denied" in await failure(agents["none"], call)
        assert await value(agents["some"], "bash('echo a')") == "'a\\n'"
        assert "NameError" in await failure(agents["some"], "edit.run")
    with pytest.raises(CallError, match=r"skills\.local"):
        async with opened(worker_url, tmp_path, other=Skills(["dig"])):  # type: ignore[list-item]
            pass


async def test_a_fresh_kernel_has_them_again(agent: AgentTools) -> None:
    assert (await agent.ipython("import os; os._exit(1)")).status == "kernel_died"
    assert await value(agent, "echo('a')") == "\"one [('text', 'a')]\""


async def test_a_remote_skill_takes_arguments_as_its_parameters_say(agent: AgentTools) -> None:
    assert await value(agent, "await echo('a', 3)") == "\"one [('text', 'a'), ('times', 3)]\""
    assert await value(agent, "echo(times=None, text='a', or_null=None)") == (
        "\"one [('or_null', None), ('text', 'a')]\""
    )
    assert await value(agent, "echo('a', **{'from': 'b'})") == "\"one [('from', 'b'), ('text', 'a')]\""
    assert "TypeError: missing a required argument: 'text'" in await failure(agent, "echo()")
    assert "TypeError" in await failure(agent, "echo('a', 1, None, 'more')")
    assert "Error: internal: it failed" in await failure(agent, "await echo('fail')")
    assert await value(agent, "try: echo('fail')\nexcept RuntimeError as error: print(error.code)") == "internal\n"
    assert await value(agent, "import inspect; inspect.signature(echo)") == (
        "<Signature (text: str, times: int = 1, or_null: str | None = None, **_others) -> str>"
    )
    assert await value(agent, "print(echo.__doc__)") == (
        "Say it again.\n\nArguments:\n    times (int, optional)\n    text (str): what to say\n"
        "    from (str, optional)\n    or_null (str | None, optional)\n"
    )
    assert "not_found: there is no skill 'none'" in await failure(
        agent, "rlm.call('skills.call', skill='none', arguments={})"
    )


async def test_calls_are_counted_where_a_cell_cannot_forge_them(agent: AgentTools) -> None:
    cell = await agent.ipython(
        "for _ in range(3): bash('true')\necho('a')\ntry: edit('none', 'a', 'b')\nexcept OSError: pass"
    )
    assert cell.skill_calls == {"bash": 3, "echo": 1, "edit": 1}
    assert (await agent.ipython("1")).skill_calls == {}
    cell = await agent.ipython(
        "for n in range(300):\n  name = f'{n}' + 'x' * 200\n"
        "  try: rlm.call('skills.call', skill=name, arguments={})\n  except rlm.Error: pass"
    )
    assert len(cell.skill_calls) == 256
    assert max(map(len, cell.skill_calls)) == 96


@pytest.mark.parametrize("name", ["rlm", "edit", "class", "print", "json", "get_ipython", "__", "", "echo", "x" * 97])
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    skills = SkillTable()
    skills.add(ECHO, echo, "the first")
    with pytest.raises(UserError, match="the second"):
        skills.add(RemoteSkill(name), echo, "the second")


def test_there_is_a_limit_to_skills_and_to_their_descriptions() -> None:
    skills = SkillTable()
    for number in range(table.SKILLS_LIMIT):
        skills.add(RemoteSkill(f"tool_{number}"), echo, "it")
    with pytest.raises(UserError, match="more than 128 tools for cells: one is one too many"):
        skills.add(RemoteSkill("one_more"), echo, "one")
    skills = SkillTable()
    with pytest.raises(UserError, match="more than 1 MiB with one"):
        skills.add(RemoteSkill("one", "x" * table.DESCRIPTORS_LIMIT), echo, "one")


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("weather", "get"), "weather_get"),
        (("My Server", "list-issues.v2"), "My_Server_list_issues_v2"),
        (("3d", "turn"), "_3d_turn"),
        (("", "\u00fc"), "__"),
    ],
)
def test_names_are_made_identifiers(parts: tuple[str, str], name: str) -> None:
    assert identifier(*parts) == name
