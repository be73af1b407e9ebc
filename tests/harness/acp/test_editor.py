"""The official client of the protocol drives the program, as an editor does."""

import json
import os
import sys
from pathlib import Path

import trio


async def test_two_prompts_a_cancellation_and_a_close(model_server, script, workdir, tmp_path):
    (workdir / "a.txt").write_text("one\n")
    model_server.answers = [
        script.calls("edit", {"path": "a.txt", "old_str": "one", "new_str": "two"}),
        script.says("Edi", "ted."),
        script.calls("bash", {"command": "sleep 600"}),
        script.says("Fine."),
    ]
    agent = [sys.executable, "-m", "rlm_harness", "acp", "--model", "m", "--base-url", model_server.base_url]
    program = [sys.executable, Path(__file__).with_name("editor.py"), workdir, *agent]
    ours = {"RLM_HOME": str(tmp_path / "home"), "OPENAI_API_KEY": "sk-editor"}
    with trio.fail_after(100):
        done = await trio.run_process(program, env=os.environ | ours, capture_stdout=True)
    told = json.loads(done.stdout)
    assert (told["name"], told["exit"]) == ("rlm", 0)
    assert told["stops"] == ["end_turn", "cancelled", "end_turn"]
    kinds = [update["sessionUpdate"] for update in told["updates"]]
    assert kinds[:5] == ["tool_call", "tool_call_update", "agent_message_chunk", "agent_message_chunk", "tool_call"]
    edit = told["updates"][0]
    assert (edit["kind"], edit["locations"]) == ("edit", [{"path": str(workdir / "a.txt")}])
    assert (edit["content"][0]["oldText"], edit["content"][0]["newText"]) == ("one", "two")
    assert all(headers["authorization"] == "Bearer sk-editor" for headers in model_server.headers)
    assert (workdir / "a.txt").read_text() == "two\n"
