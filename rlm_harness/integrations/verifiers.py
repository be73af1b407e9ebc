"""A harness plugin for the verifiers framework (0.4): the harness stays on the host.

Only its worker runs in the task's runtime. So the model's key, the ledger and the credentials of MCP servers are not
where the agent's tools are.

Its id is `rlm_verifiers`. Variables of the harness configuration's `env`: `RLM_HARNESS` is the program on the host
(`rlm`), `RLM_WORKER` the command in the runtime, in shell words (`rlm-worker serve --stdio`). Or `RLM_WORKER_ADDRESS`
is where a worker listens in the runtime, `HOST:PORT`, and `RLM_TOKEN`, which may be forwarded, its token.
"""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlsplit

from verifiers.v1.acp import ACPConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.errors import HarnessError
from verifiers.v1.harness import HarnessSession
from verifiers.v1.harnesses.rlm.harness import RLM_RUNTIME_METADATA_KEY, RLM_STATE_DIR, RLMHarness
from verifiers.v1.runtimes import Runtime, SubprocessConfig
from verifiers.v1.runtimes.subprocess import SubprocessRuntime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace

__all__ = ["SplitRLMHarness"]


class SplitRLMHarness(RLMHarness):
    """For the subprocess runtime. Others give the address of the model only as seen from within."""

    NEEDS_CONTAINER = False
    SUPPORTS_SKILLS = False  # as packages; the built-in ones are part of the worker

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._hosts: dict[str, Runtime] = {}

    async def setup(self, runtime: Runtime) -> None:
        """Nothing is installed: the runtime has the worker already, or this raises HarnessError."""
        if self._address is not None:
            return
        found = await runtime.run(["sh", "-c", f"command -v {shlex.quote(self._worker[0])}"], {})
        if found.exit_code:
            raise HarnessError(f"the runtime has no {self._worker[0]!r}: install rlm-wire[worker], or set RLM_WORKER")

    async def session(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
        tool_interception_url: str | None = None,
    ) -> HarnessSession:
        host = self._hosts[trace.id] = SubprocessRuntime(SubprocessConfig(), name=f"{trace.id}-harness")
        await host.start()
        session = await super().session(ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url)
        session.runtime = host  # where the session starts its process
        return session

    async def prepare_acp(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ACPConfig:
        config = await super().prepare_acp(ctx, trace, runtime, endpoint, secret, mcp_urls, data)
        config.env.pop("RLM_TOKEN", None)  # the contract has it
        config.command = [self.config.resolved_env.get("RLM_HARNESS", "rlm"), "--acp"]
        assert config.session_meta is not None
        contract = config.session_meta[RLM_RUNTIME_METADATA_KEY]
        assert isinstance(contract, dict)
        contract |= self._execution(runtime)
        return config

    async def cleanup(self, trace: Trace, runtime: Runtime) -> None:
        host = self._hosts.pop(trace.id, None)
        if host is not None:
            await host.run(["rm", "-rf", f"{RLM_STATE_DIR}/{trace.id}"], {})
            await host.stop()

    def _execution(self, runtime: Runtime) -> dict[str, Any]:
        if not isinstance(runtime, SubprocessRuntime):  # the endpoint's address is for within those
            raise HarnessError(f"a worker in a runtime of type {runtime.config.type!r} cannot be reached yet")
        place = {"execution_cwd": str(runtime.workdir)}
        if self._address is None:
            return place | {"execution_command": self._worker}
        token = self.config.resolved_env.get("RLM_TOKEN")
        try:
            address = urlsplit(f"//{self._address}")
            host, port = address.hostname, address.port
        except ValueError:
            host, port = None, None
        if not (host and port and token):
            raise HarnessError("RLM_WORKER_ADDRESS is HOST:PORT, or [HOST]:PORT for IPv6, and needs RLM_TOKEN with it")
        return place | {"execution_tcp": {"host": host, "port": port, "token": token}}

    @property
    def _address(self) -> str | None:
        return self.config.resolved_env.get("RLM_WORKER_ADDRESS")

    @property
    def _worker(self) -> list[str]:
        return shlex.split(self.config.resolved_env.get("RLM_WORKER", "rlm-worker serve --stdio"))
