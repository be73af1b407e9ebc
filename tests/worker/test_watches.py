"""Watches: what is told of paths and jobs, when they end, and how many there may be."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock
from worker.background import AGENT, NO_PATHS, Desk, open_desk

from rlm_wire.errors import CallError, Code
from rlm_wire.methods.events import JobOutputGrew, PathChanged, WatchFailed
from rlm_wire.methods.jobs import CancelJob, ReadJob, WriteJob
from rlm_wire.methods.sessions import Quotas
from rlm_wire.methods.watches import CancelWatch, GetWatch, ListWatches, WatchInfo, WatchJob, WatchPath
from rlm_worker.processes import Reaper
from rlm_worker.watches.paths import BATCH


@pytest.fixture
async def desk(reaper: Reaper, tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Desk]:
    (tmp_path / "place").mkdir()
    async with open_desk(reaper, tmp_path / "place", {**environment, "TMPDIR": str(tmp_path)}) as desk:
        yield desk


@pytest.fixture
def place(desk: Desk) -> Path:
    return Path(desk.place.cwd)


async def watch(desk: Desk, path: str, *, recursive: bool = False) -> WatchInfo:
    info: WatchInfo = await desk.ask(WatchPath(AGENT, path, recursive))
    return info


async def told(desk: Desk, watch: WatchInfo, path: Path) -> PathChanged:
    """Wait until that path is told."""
    return await desk.wait_for(
        PathChanged, lambda content: content.subscription_id == watch.id and str(path) in content.paths
    )


async def refused(desk: Desk, request: object) -> Code:
    with pytest.raises(CallError) as error:
        await desk.ask(request)
    return error.value.code


async def test_a_directory_tells_what_happens_directly_in_it(desk: Desk, place: Path) -> None:
    (place / "sub").mkdir()
    (place / "old").touch()
    info = await watch(desk, ".")
    assert (info.target, info.status, info.kind) == (str(place), "active", "path")
    (place / ".hidden").write_text("x")
    (place / "sub" / "deep").write_text("x")
    (place / "old").unlink()
    first = await told(desk, info, place / "old")
    assert first.paths == [str(place / ".hidden"), str(place / "old")]
    (place / ".hidden").rename(place / "renamed")
    assert str(place / ".hidden") in (await told(desk, info, place / "renamed")).paths
    assert not any(str(place / "sub" / "deep") in repr(event) for event in desk.events)
    assert (await desk.ask(CancelWatch(AGENT, info.id))).status == "cancelled"
    (place / "later").touch()
    other = await watch(desk, ".")
    (place / "last").touch()
    await told(desk, other, place / "last")
    assert not any(str(place / "later") in repr(event) for event in desk.events)


async def test_a_recursive_watch_follows_directories_that_come_and_go(desk: Desk, place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    info = await watch(desk, ".", recursive=True)
    (place / "a" / "b" / "file").write_text("x")
    await told(desk, info, place / "a" / "b" / "file")
    (place / "new" / "deep").mkdir(parents=True)
    (place / "new" / "deep" / "early").touch()
    await told(desk, info, place / "new" / "deep" / "early")
    (place / "new" / "deep" / "late").touch()
    await told(desk, info, place / "new" / "deep" / "late")
    (place / "new").rename(place.parent / "moved")
    await told(desk, info, place / "new")
    (place.parent / "moved" / "deep" / "outside").touch()
    shutil.rmtree(place / "a")
    await told(desk, info, place / "a")
    assert "outside" not in repr(desk.events)
    (place / "link").symlink_to(place.parent / "moved")
    await told(desk, info, place / "link")


async def test_a_file_is_still_that_file_when_it_is_replaced(desk: Desk, place: Path) -> None:
    target = place / "file.py"
    target.write_text("1")
    info = await watch(desk, "file.py")
    for text in ("2", "3"):
        (place / "file.py.tmp").write_text(text)
        (place / "file.py.tmp").replace(target)  # as most programs save
        assert (await told(desk, info, target)).paths == [str(target)]
        desk.events.clear()
    target.rename(place / "file.py~")  # as some editors do
    target.write_text("4")
    await told(desk, info, target)
    assert (await desk.ask(GetWatch(AGENT, info.id))).status == "active"
    desk.events.clear()
    target.unlink()
    failed = await desk.wait_for(WatchFailed)
    assert (failed.subscription_id, failed.target) == (info.id, str(target))
    known = await desk.ask(GetWatch(AGENT, info.id))
    assert (known.status, known.error) == ("failed", failed.error)
    assert "removed" in failed.error


async def test_a_directory_that_is_removed_ends_its_watch_and_one_made_anew_does_not(desk: Desk, place: Path) -> None:
    (place / "build" / "x").mkdir(parents=True)
    info = await watch(desk, "build", recursive=True)
    shutil.rmtree(place / "build")
    (place / "build").mkdir()
    await told(desk, info, place / "build")
    (place / "build" / "again").touch()
    await told(desk, info, place / "build" / "again")
    desk.events.clear()
    (place / "build").rename(place / "old")
    (place / "build").mkdir()
    await told(desk, info, place / "build")
    (place / "old" / "not this").touch()
    (place / "build" / "this").touch()
    await told(desk, info, place / "build" / "this")
    assert "not this" not in repr(desk.events)
    (place / "build").rename(place / "elsewhere")
    assert (await desk.wait_for(WatchFailed)).subscription_id == info.id


async def test_a_long_list_is_cut_and_says_so(desk: Desk, place: Path) -> None:
    info = await watch(desk, ".")
    for number in range(1000):
        (place / f"{number:03}{'x' * 100}").touch()
    (place / os.fsdecode(b"\xff")).touch()
    cut = await desk.wait_for(PathChanged, lambda content: content.truncated)
    assert cut.subscription_id == info.id
    assert cut.paths == sorted(cut.paths)
    assert 30_000 < sum(len(path) + 3 for path in cut.paths) < 32 * 1024


async def test_a_job_watch_tells_ranges_of_bytes_and_ends_with_the_job(desk: Desk) -> None:
    job = await desk.start("echo early; read line; echo $line; read line; echo bye; exec sleep 1000", stdin=True)
    await desk.ask(ReadJob(AGENT, job, wait=60))
    info = await desk.ask(WatchJob(AGENT, job))
    assert (info.target, info.status) == (job, "active")
    await desk.ask(WriteJob(AGENT, job, b"hello\n"))
    assert await desk.wait_for(JobOutputGrew) == JobOutputGrew(info.id, job, 6, 12)
    await desk.ask(WriteJob(AGENT, job, b"\n"))
    await desk.wait_for(JobOutputGrew, lambda content: (content.start, content.end) == (12, 16))
    await desk.ask(CancelJob(AGENT, job))
    late = await desk.ask(WatchJob(AGENT, job))
    assert late.status == "completed"
    while (await desk.ask(GetWatch(AGENT, info.id))).status == "active":
        await trio.lowlevel.checkpoint()
    assert [one.status for one in await desk.ask(ListWatches(AGENT))] == ["completed", "completed"]


async def test_what_cannot_be_watched_is_refused(desk: Desk, place: Path) -> None:
    assert await refused(desk, WatchPath(AGENT, "missing")) == "not_found"
    assert await refused(desk, WatchPath(AGENT, "")) == "invalid_argument"
    for path in NO_PATHS:
        assert await refused(desk, WatchPath(AGENT, path)) == "invalid_argument"
    assert await refused(desk, WatchJob(AGENT, "job-9")) == "not_found"
    desk.background.grant(Quotas(watches=2, registered_watches=5))
    first = await watch(desk, ".")
    await watch(desk, "..")
    assert await refused(desk, WatchPath(AGENT, ".")) == "resource_exhausted"
    await desk.ask(CancelWatch(AGENT, first.id))
    await watch(desk, ".")
    await desk.background.close_agent(AGENT)
    assert await desk.ask(ListWatches(AGENT)) == []
    assert await refused(desk, GetWatch(AGENT, first.id)) == "not_found"
    await watch(desk, ".")
    assert await refused(desk, WatchPath(AGENT, ".")) == "resource_exhausted"


async def test_changes_are_gathered_from_the_first_one_on_and_told_together(
    desk: Desk, place: Path, mock_clock: MockClock
) -> None:
    info = await watch(desk, ".")
    other = await watch(desk, "..")
    for name in ("a", "b"):
        (place / name).touch()
        (place.parent / f"{name} beside").touch()
    await trio.testing.wait_all_tasks_blocked()
    assert desk.events == []
    mock_clock.jump(BATCH - 0.001)
    await trio.testing.wait_all_tasks_blocked()
    assert desk.events == []
    mock_clock.jump(0.001)
    assert (await told(desk, info, place / "b")).paths == [str(place / "a"), str(place / "b")]
    await told(desk, other, place.parent / "b beside")
    assert len(desk.events) == 2


async def test_the_output_of_a_job_is_gathered_and_told_together(desk: Desk, mock_clock: MockClock) -> None:
    job = await desk.start("cat", stdin=True)
    info = await desk.ask(WatchJob(AGENT, job))
    for cursor in (0, 5, 10):
        await desk.ask(WriteJob(AGENT, job, b"line\n"))
        assert (await desk.ask(ReadJob(AGENT, job, cursor, wait=60))).text == "line\n"
    await trio.testing.wait_all_tasks_blocked()
    assert [event for event in desk.events if isinstance(event.content, JobOutputGrew)] == []
    mock_clock.jump(BATCH)
    assert await desk.wait_for(JobOutputGrew) == JobOutputGrew(info.id, job, 0, 15)
    assert sum(isinstance(event.content, JobOutputGrew) for event in desk.events) == 1
