"""Skills and MCP servers of `rlm-harness run`, told on the command line."""

import json
import sys
from pathlib import Path

SERVER = str(Path(__file__).parent / "mcp_server.py")


def mcp_file(command, **env):
    path = command.place / "mcp.json"
    path.write_text(
        json.dumps({"mcpServers": {"test": {"command": sys.executable, "args": [SERVER, "stdio"], "env": env}}})
    )
    path.chmod(0o600)
    return str(path)


def results(model_server):
    return [message["content"] for message in model_server.requests[-1]["messages"] if message["role"] == "tool"]


async def test_cells_have_the_tools_of_mcp_servers_and_the_prompt_names_them(command, model_server, script):
    cells = ["await test_add(1, 1)", "print(await bash('echo $SESAME'), edit.__name__)", "test_secret()", "search"]
    model_server.answers = [script.calls("ipython", {"code": cell}) for cell in cells]
    model_server.answers.append(script.says("done"))
    ran = await command.run("--mcp", mcp_file(command, TEST_SECRET="${SESAME}"), SESAME="open", SERPER_API_KEY="")
    assert (ran.returncode, ran.stderr) == (0, b"")
    plain, local, secret, search = results(model_server)
    assert (plain, local, secret) == ("'2'", "\n edit\n", "'open'")  # the variable is the server's, and nobody else's
    assert "NameError" in search
    (ledger,) = (command.place / "home" / "sessions").glob("*/messages.jsonl")
    records = map(json.loads, ledger.read_text().splitlines())
    counts = [record.get("skill_calls") for record in records if record["type"] == "tool_result"]
    assert counts == [{"test_add": 1}, {"bash": 1}, {"test_secret": 1}, None]
    prompt = model_server.requests[0]["messages"][0]["content"]
    assert "`bash`, `edit`, `fetch`, `test_add`" in prompt
    assert "  * `test_add`: Add two numbers.\n" in prompt


async def test_mistakes_with_skills_are_one_line(command):
    for arguments, complaint in {
        ("--mcp", "none.json"): "cannot read none.json: No such file or directory",
        ("--skills", "dig"): "there is no skill 'dig'; the skills are bash, edit, fetch, search",
    }.items():
        ran = await command.run(*arguments, SERPER_API_KEY="")
        assert ran.returncode == 2
        assert complaint in ran.stderr.decode()
        assert ran.stderr.count(b"\n") == 1
    broken = command.place / "broken.json"
    broken.write_text('{"mcpServers": {"nobody": {"command": "/no/such/program"}}}')
    broken.chmod(0o600)
    ran = await command.run("--mcp", str(broken))
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr == (
        b"rlm-harness: the MCP server 'nobody' cannot be used: cannot start it: command not found: /no/such/program\n"
    )


async def test_without_git_a_refusal_is_an_ordinary_result(command, model_server, script):
    model_server.answers = [
        script.calls("bash", {"command": "git clone x"}),
        script.calls("ipython", {"code": "!git log --all"}),
        script.says("done"),
    ]
    ran = await command.run("--no-git")
    assert (ran.returncode, ran.stderr) == (0, b"")
    first, second = results(model_server)
    assert first.startswith("Error: blocked git command: 'clone' is not for use here")
    assert second.startswith("PermissionError: blocked git command: '--all' is not for use here")
    assert "* git is for the history of what is checked out" in model_server.requests[0]["messages"][0]["content"]
