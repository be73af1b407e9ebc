"""What a local worker's tools can find out of the harness that started it."""

from __future__ import annotations

from typing import Any

import pytest

LOOK = "(env; cat /proc/$PPID/environ /proc/*/environ) | tr '\\0' '\\n' | grep -a -e ^HOME= -e of-the-harness | sort -u"


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "FAKE_API_KEY"])
async def test_b64_a_key_of_the_harness_is_in_no_process_that_tools_can_read(
    command: Any, model_server: Any, script: Any, variable: str
) -> None:
    key = "sk-of-the-harness"
    model_server.answers = [
        script.calls("bash", {"command": LOOK}),
        script.calls("ipython", {"code": "import os; dict(os.environ)"}),
        script.says("done"),
    ]
    run = await command.run(**{variable: key})
    assert run.returncode == 0, run.stderr
    results = [message["content"] for message in model_server.requests[-1]["messages"] if message["role"] == "tool"]
    assert len(results) == 2
    assert "HOME=" in results[0]
    assert "'HOME'" in results[1]
    assert "of-the-harness" not in "".join(results)
