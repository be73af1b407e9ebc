"""What an editor does, with the official client of the protocol: `editor.py DIRECTORY PROGRAM...`. No test.

Two prompts, one that is cancelled, and a close; what came is printed as JSON.
"""

import asyncio
import json
import os
import sys
from typing import Any

import acp
from acp.schema import SessionNotification

directory, *program = sys.argv[1:]


class Editor(acp.Client):
    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.began = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        notification = SessionNotification(session_id=session_id, update=update)
        self.updates.append(notification.model_dump(mode="json", by_alias=True, exclude_none=True)["update"])
        if self.updates[-1]["sessionUpdate"] == "tool_call" and "sleep" in self.updates[-1]["title"]:
            self.began.set()


async def main() -> None:
    editor = Editor()
    async with acp.spawn_agent_process(editor, *program, env=dict(os.environ)) as (connection, process):
        can = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = (await connection.new_session(cwd=directory, mcp_servers=[])).session_id

        async def prompt(text: str) -> str:
            return (await connection.prompt(session_id=session, prompt=[acp.text_block(text)])).stop_reason

        stops = [await prompt("one")]
        cancelled = asyncio.create_task(prompt("two"))
        await editor.began.wait()
        await connection.cancel(session_id=session)
        stops += [await cancelled, await prompt("three")]
        await connection.close_session(session_id=session)
    told = {"name": can.agent_info.name, "stops": stops, "updates": editor.updates, "exit": process.returncode}
    print(json.dumps(told))


asyncio.run(main())
