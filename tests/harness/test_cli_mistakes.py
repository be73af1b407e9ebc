"""What `rlm-harness` says when it cannot do what was asked."""

import sys

import pytest
import trio


@pytest.mark.parametrize(
    ("code", "advice"),
    [(401, "the API key is wrong"), (404, "--base-url usually ends in /v1"), (400, "refuses the request")],
)
async def test_a_refused_request_is_one_clear_line(model_server, script, command, worker_url, code, advice):
    model_server.answers = [script.status(code, {"error": {"message": f"for {command.key}: no"}})]
    done = await command.run("--workspace", worker_url)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert advice in done.stderr.decode()
    assert command.key.encode() not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("more", "changes", "words"),
    [
        ([], {"OPENAI_API_KEY": "two words"}, "OPENAI_API_KEY has characters"),
        (["--api-key-file", "/nowhere"], {}, "cannot read /nowhere"),
        (["--token-file", "/nowhere"], {}, "cannot be read from /nowhere"),
        (["--token-fd", "987"], {}, "cannot be read from descriptor 987"),
        ([], {"RLM_TOKEN": " "}, "RLM_TOKEN holds no token"),
        (["--cwd", "/nowhere"], {}, "/nowhere"),
        (["--workspace", "carrier-pigeon:home"], {}, "carrier-pigeon"),
        (["--workspace", "tcp://127.0.0.1:1"], {}, "127.0.0.1:1"),
        (["--workspace", "tcp://host:99999"], {}, "'99999' is no port: the address must be HOST:PORT"),
        (["--workspace", "tcp://host:0"], {}, "'0' is no port: the address must be HOST:PORT"),
        (["--workspace", "tcp://host:-1"], {}, "with a port from 1 to 65535"),
        (["--workspace", "tcp://host:abc"], {}, "'abc' is no port"),
        (["--workspace", "tcp://host"], {}, "there is no port"),
        (["--base-url", "nonsense"], {}, "not an http:// or https:// URL"),
        (["--max-turns", "0"], {}, "not a positive whole number"),
        (["--max-depth", "deep"], {}, "not a whole number"),
        (["--tools", "bash,zsh"], {}, "no tool 'zsh'; the tools are ipython, bash, edit, fetch"),
        ([], {"RLM_HOME": "/dev/null"}, "RLM_HOME names another place"),
    ],
)
async def test_a_users_mistake_is_one_line_and_exit_code_2(command, more, changes, words):
    done = await command.run(*more, **changes)
    assert done.returncode == 2
    message = done.stderr.decode()
    assert message.count("\n") == 1
    assert words in message
    assert message.startswith("rlm-harness: ")


@pytest.mark.parametrize(
    ("finish_reason", "more", "advice"),
    [("length", [], "cut at its token limit"), ("tool_calls", ["--max-turns", "1"], "raise --max-turns")],
)
async def test_a_session_without_an_answer_says_what_to_do(
    model_server, script, command, worker_url, finish_reason, more, advice
):
    cut, calling = script.says("Half a", finish_reason="length"), script.calls("bash", {"command": "true"})
    model_server.answers = [cut if finish_reason == "length" else calling]
    done = await command.run("--workspace", worker_url, *more)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert advice in done.stderr.decode()


async def test_files_that_others_can_read_are_told_of(model_server, script, command, worker_url):
    paths = [command.place / name for name in ("key", "token")]
    for path in paths:
        path.write_text("sesame")
        path.chmod(0o644)
    model_server.answers = [script.says("ok")]
    done = await command.run("--workspace", worker_url, "--api-key-file", str(paths[0]), "--token-file", str(paths[1]))
    assert done.returncode == 0
    assert done.stderr.decode() == "".join(
        f"rlm-harness: warning: others can read the secret in {path}; chmod 600 it\n" for path in paths
    )
    assert model_server.headers[0]["authorization"] == "Bearer sesame"


async def test_without_key_the_default_endpoint_is_not_asked(command):
    done = await trio.run_process(
        [sys.executable, "-m", "rlm_harness", "run", "--model", "m", "go"],
        env={name: value for name, value in command.environment().items() if name != "OPENAI_API_KEY"},
        check=False,
        capture_stderr=True,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"OPENAI_API_KEY" in done.stderr


@pytest.mark.parametrize("words", [[], ["run"], ["demo"]])
async def test_help_explains(words):
    done = await trio.run_process([sys.executable, "-m", "rlm_harness", *words, "--help"], capture_stdout=True)
    assert b"usage: rlm-harness" in done.stdout
    if words != ["demo"]:
        assert b"examples:" in done.stdout


@pytest.mark.parametrize("word", ["run", "resume"])
async def test_help_tells_the_exit_code_of_a_lost_workspace(word):
    done = await trio.run_process([sys.executable, "-m", "rlm_harness", word, "--help"], capture_stdout=True)
    assert b", 3 the workspace was lost" in done.stdout


async def test_the_task_may_hold_bytes_that_are_no_text(model_server, script, command, worker_url):
    model_server.answers = [script.says("ok")]
    words = [*command.arguments("--workspace", worker_url)[:-1], b"caf\xe9"]
    done = await trio.run_process(words, env=command.environment(), capture_stdout=True)
    assert done.returncode == 0
    assert model_server.requests[0]["messages"][1]["content"] == "caf\ufffd"
