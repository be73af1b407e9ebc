"""Services: when they count as ready, who restarts them, and what ends them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import trio
from worker.background import AGENT, NO_PATHS, Desk, alive, open_desk

from rlm_wire.errors import CallError, Code
from rlm_wire.methods.events import ServiceChanged
from rlm_wire.methods.services import (
    GetService,
    ListServices,
    ReadService,
    Ready,
    ServiceInfo,
    StartService,
    StopService,
)
from rlm_wire.methods.sessions import Quotas
from rlm_worker.processes import Reaper, open_reaper

SERVER = f"exec {shlex.quote(sys.executable)} -u -m http.server --bind 127.0.0.1"


@pytest.fixture
async def desk(reaper: Reaper, tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Desk]:
    async with open_desk(reaper, tmp_path, {**environment, "TMPDIR": str(tmp_path)}) as desk:
        yield desk


@pytest.fixture
async def port() -> int:
    """A port that was free just now."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    number: int = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return number


@pytest.fixture
def end_group(wait_for_end: Callable[[int], bool]) -> Iterator[Callable[[int], None]]:
    """Kill a process group that a test left running on purpose, at the latest with the test."""
    groups: list[int] = []
    yield groups.append
    for group in groups:
        os.killpg(group, 9)
        wait_for_end(group)


async def start(desk: Desk, name: str, command: str, ready: Ready | None = None, **options: object) -> ServiceInfo:
    info: ServiceInfo = await desk.ask(StartService(AGENT, name, command, ready=ready, **options))  # type: ignore[arg-type]
    return info


async def refusal(
    desk: Desk, name: str, command: str, ready: Ready | None = None, **options: object
) -> tuple[Code, str]:
    with pytest.raises(CallError) as error:
        await start(desk, name, command, ready, **options)
    return error.value.code, error.value.message


async def test_b08_a_service_lives_until_it_is_stopped_and_its_port_is_free_at_once(desk: Desk, port: int) -> None:
    first = await start(desk, "web", f"{SERVER} {port}", Ready(port=port))
    assert (first.status, first.name) == ("ready", "web")
    code, message = await refusal(desk, "other", f"{SERVER} {port}", Ready(port=port))
    assert (code, str(port) in message) == ("failed_precondition", True)
    with trio.move_on_after(0.1):
        await desk.ask(ReadService(AGENT, "web", 1_000_000, wait=300))
    await desk.run("sleep 1000", timeout=0.1)
    (known,) = await desk.ask(ListServices(AGENT))
    assert (known.status, known.pid) == ("ready", first.pid)
    assert (await desk.ask(StopService(AGENT, "web"))).status == "stopped"
    again = await start(desk, "web", f"{SERVER} {port}", Ready(http=f"http://127.0.0.1:{port}/"))
    assert again.pid != first.pid
    log = await desk.ask(ReadService(AGENT, "web"))
    assert '"GET / HTTP/1.1" 200' in log.text
    assert await desk.background.close_agent(AGENT) == (0, [])
    assert not alive(again.pid or 0)


async def test_a_line_of_the_log_may_say_that_it_is_ready(desk: Desk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    command = "echo warming up; read line < go; printf 'now re'; sleep 0.1; echo 'ady'; exec sleep 1000"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, desk, "slow", command, Ready(log="ready"))
        while "warming" not in (await trio_read(desk, "slow")):
            pass
        assert (await desk.ask(GetService(AGENT, "slow"))).status == "starting"
        await trio.to_thread.run_sync((tmp_path / "go").write_text, "x\n", abandon_on_cancel=True)
    assert (await desk.ask(GetService(AGENT, "slow"))).status == "ready"


async def trio_read(desk: Desk, name: str) -> str:
    """The log, once there is one."""
    while True:
        try:
            text: str = (await desk.ask(ReadService(AGENT, name, wait=60))).text
        except CallError:
            await trio.lowlevel.checkpoint()  # it is being started
        else:
            return text


async def test_a_service_that_does_not_become_ready_is_stopped_and_its_log_is_told(desk: Desk, port: int) -> None:
    code, message = await refusal(desk, "a", "echo no such module >&2; exit 3", Ready(port=port), restart="always")
    assert code == "failed_precondition"
    assert "exit code 3" in message
    assert "no such module" in message
    command = "echo $$; exec sleep 1000"
    code, message = await refusal(desk, "a", command, Ready(port=port), ready_timeout=0.5)
    assert code == "deadline_exceeded"
    assert not alive(int(message.split()[-1]))
    with trio.move_on_after(0.2):
        await start(desk, "a", command, Ready(log="never"))
    (known,) = await desk.ask(ListServices(AGENT))
    assert known.status == "stopped"
    wrong = [
        Ready(),
        Ready(port=1, log="x"),
        Ready(port=0),
        Ready(http="https://x/"),
        Ready(log=""),
        Ready(http="http://["),
    ]
    for ready in wrong:
        assert (await refusal(desk, "b", "true", ready))[0] == "invalid_argument"
    assert (await refusal(desk, "b", "true", cwd="missing"))[0] == "not_found"
    for path in NO_PATHS:
        assert (await refusal(desk, "b", "true", cwd=path))[0] == "invalid_argument"
    assert (await refusal(desk, " ", "true"))[0] == "invalid_argument"
    assert len(await desk.ask(ListServices(AGENT))) == 1


async def test_the_restart_policy_decides_who_is_started_again(desk: Desk, tmp_path: Path) -> None:
    await start(desk, "always", "echo run; exit 0", restart="always")
    await start(desk, "failing", "echo run; test -e well || exit 4", restart="on_failure")
    await start(desk, "never", "exit 5")
    await desk.wait_for(ServiceChanged, lambda one: one.name == "always" and one.restarts == 2)
    await desk.wait_for(ServiceChanged, lambda one: one.name == "failing" and one.status == "restarting")
    (tmp_path / "well").touch()
    ended = await desk.wait_for(ServiceChanged, lambda one: one.name == "failing" and one.status == "failed")
    assert (ended.exit_code, ended.restarts >= 1) == (0, True)
    assert (await desk.ask(StopService(AGENT, "always"))).status == "stopped"
    assert (await desk.ask(ReadService(AGENT, "always"))).text.startswith("run\nrun\n")
    never = await desk.ask(GetService(AGENT, "never"))
    assert (never.status, never.exit_code, never.restarts) == ("failed", 5, 0)


async def test_a_service_with_keep_survives_its_session_and_its_worker(
    tmp_path: Path, environment: dict[str, str], end_group: Callable[[int], None], wait_for_end: Callable[[int], bool]
) -> None:
    async with open_reaper() as reaper, open_desk(reaper, tmp_path, environment) as desk:
        kept = await start(desk, "kept", "echo up; exec sleep 1000", Ready(log="up"), keep=True)
        ended = await start(desk, "ended", "exec sleep 1000")
        stopped = await start(desk, "stopped", "trap 'exit 3' TERM; sleep 1000 & wait", keep=True)
        failing = await start(desk, "failing", "sleep 0.1; exit 6", keep=True)
        assert (await desk.ask(StopService(AGENT, "stopped"))).status == "stopped"
        gone = await desk.wait_for(ServiceChanged, lambda one: one.name == "failing" and one.status == "failed")
        assert gone.exit_code == 6
        assert kept.pid is not None
        end_group(kept.pid)
        left, notices = await desk.background.close_agent(AGENT)
        assert left == 0
        assert str(kept.pid) in notices[0]
        assert len(notices) == 1
    assert alive(kept.pid)
    for service in (ended, stopped, failing):
        assert service.pid is not None
        assert wait_for_end(service.pid)


@pytest.mark.parametrize(
    "name", ["", "\u3000", "x" * 201, "a\0", "\n", "a\nb", "a\r", "\x1b[2J", "\x7f", "\x85", "a\u2028b"]
)
async def test_a_name_that_is_no_line_of_text_is_refused_with_what_is_allowed(desk: Desk, name: str) -> None:
    code, message = await refusal(desk, name, "true")
    assert code == "invalid_argument"
    assert "a service's name has 1 to 200 characters" in message
    assert "no line breaks or other control characters" in message
    assert await desk.ask(ListServices(AGENT)) == []


async def test_a_name_may_be_of_any_script(desk: Desk) -> None:
    for name in ("Übung 1/2", "作業", "\U0001f468\u200d\U0001f469", "x" * 200):
        assert (await start(desk, name, "exec sleep 1000")).name == name


async def test_names_and_numbers_of_services_are_bounded(desk: Desk) -> None:
    desk.background.grant(Quotas(active_services=2))
    await start(desk, "a", "exec sleep 1000")
    assert (await refusal(desk, "a", "true"))[0] == "failed_precondition"
    await start(desk, "b", "exec sleep 1000")
    assert (await refusal(desk, "c", "true"))[0] == "resource_exhausted"
    with pytest.raises(CallError, match="no service 'a' of this agent"):
        await desk.ask(GetService("other", "a"))
