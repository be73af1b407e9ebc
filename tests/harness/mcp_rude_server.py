"""An MCP server that breaks the rules, without the SDK, which would keep them: `python mcp_rude_server.py [BEHAVIOUR]`.

It behaves at `initialize` as BEHAVIOUR says, and else as the tool `rude` is asked to; `count` says how often it was
called in this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

LINE = 33 << 20
TOOLS = [{"name": name, "inputSchema": {"type": "object", "additionalProperties": True}} for name in ("rude", "count")]


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def answer(number: Any, result: Any, **more: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", "id": number, "result": result, **more}).encode() + b"\n")


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def chat() -> None:
    while True:
        say((b"y" * 99 + b"\n") * 640)


def be_rude(how: str, number: Any) -> None:
    match how:
        case "large":
            answer(number, text("x" * LINE))
        case "endless":  # until nobody reads any more, or for ever where that is told by no error
            while True:
                say(b"x" * 65536)
        case "garbage":
            say(
                b"hello\n\n\xff\xfe\n{}\n[]\nnull\n"
                + b"[" * 100_000
                + b"\n"
                + b'{"jsonrpc": "2.0", "id": 77, "result": {}}\n'
            )
            say(b'{"jsonrpc": "2.0", "id": "seven", "result": {}}\n{"jsonrpc": "2.0", "method": 7}\n')
            answer(number, text("polite"))
        case "chatty":  # from now on, as fast as it is read, and between its answers
            threading.Thread(target=chat, daemon=True).start()
            answer(number, text("on and on"))
        case "misshapen":
            answer(number, {"content": "nothing of the kind"})
        case "half":
            say(b'{"jsonrpc": "2.0", "id": %d, "result": {"cont' % number)
            os._exit(3)
        case "deaf":
            os.close(0)
            answer(number, text("what?"))
            threading.Event().wait()
        case "mute":
            os.close(1)
            threading.Event().wait()
        case "killed":
            os.kill(os.getpid(), 9)


def main() -> None:
    calls = 0
    for line in sys.stdin.buffer:
        request = json.loads(line)
        number, params = request.get("id"), request.get("params", {})
        match request["method"]:
            case "initialize":
                be_rude(sys.argv[1] if len(sys.argv) > 1 else "", number)
                about = {"name": "rude", "version": "1"}
                answer(number, {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": about})
            case "tools/list":
                answer(number, {"tools": TOOLS})
            case "tools/call":
                calls += 1
                be_rude(params["arguments"].get("how", ""), number)
                if params["name"] == "count":
                    answer(number, text(str(calls)))


if __name__ == "__main__":
    main()
