"""Edits of real files: what changes, what must not, and what is refused."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rlm_wire.errors import CallError
from rlm_worker.tools import edit
from rlm_worker.tools.edit import run_edit


async def test_one_occurrence_is_replaced_and_all_other_bytes_stay(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfone\ntwo\r\nthree\x00\t four\n\nfive")
    result = await run_edit("a.txt", "three", "drei", cwd=str(tmp_path))
    assert file.read_bytes() == b"\xef\xbb\xbfone\ntwo\r\ndrei\x00\t four\n\nfive"
    assert (result.path, result.line, result.replacements, result.notices) == (str(file), 3, 1, [])
    assert list(tmp_path.iterdir()) == [file]


@given(before=st.text(), old=st.text(min_size=1), after=st.text(), new=st.text())
def test_what_surrounds_the_text_is_kept_byte_by_byte(before: str, old: str, after: str, new: str) -> None:
    content = (before + old + after).encode()
    if "\r" in before + old + after or content.find(old.encode()) != content.rfind(old.encode()):
        return
    start, end, inserted = edit._locate(Path("file"), content, old.encode(), new.encode())
    assert content[:start] + inserted + content[end:] == (before + new + after).encode()


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"a\nb\r\nc\r\n", "b\nc", "x\ny", b"a\nx\r\ny\r\n"),
        (b"a\nb\r\nc\n", "a", "x\ny", b"x\ny\nb\r\nc\n"),
        (b"a\nb\n", "a\nb", "x\r\ny", b"x\r\ny\n"),
    ],
)
async def test_line_ends_are_those_of_the_file(
    tmp_path: Path, content: bytes, old: str, new: str, expected: bytes
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    await run_edit("a.txt", old, new, cwd=str(tmp_path))
    assert file.read_bytes() == expected


async def test_b24_mode_times_and_attributes_of_a_script_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text("old\n")
    file.chmod(0o4755)
    attributes = False
    with suppress(OSError):  # a file system without them
        os.setxattr(file, "user.note", b"kept")
        attributes = True
    await run_edit("script", "old", "new", cwd=str(tmp_path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o4755
    assert not attributes or os.getxattr(file, "user.note") == b"kept"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
async def test_b24_the_owner_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old\n")
    os.chown(file, 12345, 54321)
    await run_edit("a", "old", "new", cwd=str(tmp_path))
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 54321)


async def test_b24_the_target_of_a_link_is_edited_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    target = tmp_path / "target"
    target.write_text("old\n")
    link = tmp_path / "inside" / "link"
    link.symlink_to("../target")
    result = await run_edit("link", "old", "new", cwd=str(tmp_path / "inside"))
    assert (str(link.readlink()), target.read_text(), result.path) == ("../target", "new\n", str(target))


async def test_b24_other_names_of_a_hard_linked_file_keep_their_content_and_this_is_said(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("old\n")
    other.hardlink_to(file)
    result = await run_edit("a", "old", "new", cwd=str(tmp_path))
    assert (file.read_text(), other.read_text()) == ("new\n", "old\n")
    assert "2 hard links" in result.notices[0]


async def test_b24_a_read_only_file_is_refused_to_root_as_well(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old\n")
    file.chmod(0o444)
    with pytest.raises(CallError, match="read-only") as refused:
        await run_edit("a", "old", "new", cwd=str(tmp_path))
    assert refused.value.code == "failed_precondition"
    assert file.read_text() == "old\n"


def test_b24_a_killed_edit_leaves_the_old_or_the_new_file_whole_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "large"
    old, new = b"old\n" + b"x" * 30_000_000, b"new\n" + b"x" * 30_000_000
    script = (
        "import sys, trio; from rlm_worker.tools.edit import run_edit\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for pair in (('old', 'new'), ('new', 'old')):\n"
        "        trio.run(lambda: run_edit('large', *pair, cwd=sys.argv[1]))\n"
        "        print('edited', flush=True)\n"
    )
    for _ in range(3):
        file.write_bytes(old)
        with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            assert worker.stdout.readline() == "edited\n"  # the next one is under way
            worker.send_signal(signal.SIGKILL)
        assert file.read_bytes() in (old, new)
        assert list(tmp_path.iterdir()) == [file]


async def test_two_edits_at_once_both_happen(tmp_path: Path) -> None:
    file = tmp_path / "a"
    names = [f"<{number}>" for number in range(12)]
    file.write_text("".join(names))
    failures = []

    async def one(name: str) -> None:
        try:
            await run_edit("a", name, name.upper() + "!", cwd=str(tmp_path))
        except CallError as error:
            failures.append((name, error.retryable))

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(one, name)
    assert all(retryable for _, retryable in failures)
    failed = {name for name, _ in failures}
    assert file.read_text() == "".join(name if name in failed else f"{name}!" for name in names)
    assert list(tmp_path.iterdir()) == [file]


async def test_a_cancelled_edit_leaves_no_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old\n" + "x" * 1_000_000)
    with trio.move_on_after(0):
        await run_edit("a", "old", "new", cwd=str(tmp_path))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "old", "code", "count"),
    [
        (b"abc", "x", "failed_precondition", 0),
        (b"abab", "ab", "failed_precondition", 2),
        (b"aaa", "aa", "failed_precondition", 2),
        (b"abc", "", "invalid_argument", None),
        (b"\xff\xfeabc", "abc", "invalid_argument", None),
    ],
)
async def test_an_edit_that_is_not_clear_is_refused(
    tmp_path: Path, content: bytes, old: str, code: str, count: int | None
) -> None:
    file = tmp_path / "a"
    file.write_bytes(content)
    with pytest.raises(CallError) as refused:
        await run_edit("a", old, "new", cwd=str(tmp_path))
    assert refused.value.code == code
    assert refused.value.data == (None if count is None else {"count": count})
    assert file.read_bytes() == content


async def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    codes = {}
    for name in ("missing", ".", "pipe", "loop", "missing/file", "", "a\0b", "x" * 300):
        with pytest.raises(CallError) as refused:
            await run_edit(name, "old", "new", cwd=str(tmp_path))
        codes[name] = refused.value.code
    missing, wrong = "not_found", "invalid_argument"
    assert list(codes.values()) == [missing, wrong, wrong, missing, missing, wrong, wrong, wrong]


async def test_a_file_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(edit.FILE_LIMIT + 1)
    with pytest.raises(CallError) as refused:
        await run_edit("sparse", "old", "new", cwd=str(tmp_path))
    assert refused.value.code == "resource_exhausted"


async def test_b22_names_beyond_ascii_are_ordinary(tmp_path: Path) -> None:
    (tmp_path / "世.txt").write_text("alt\n")
    assert (await run_edit("世.txt", "alt", "neü", cwd=str(tmp_path))).line == 1
    assert (tmp_path / "世.txt").read_bytes() == "neü\n".encode()


def test_b68_a_full_disk_is_named_and_the_file_stays_whole(tmp_path: Path) -> None:
    script = (
        "import sys, trio; from rlm_wire.errors import CallError; from rlm_worker.tools.edit import run_edit\n"
        "try: trio.run(lambda: run_edit('a', 'old', 'new', cwd=sys.argv[1]))\n"
        "except CallError as error: print(error.code, error.message)\n"
    )
    steps = (
        f'mount -t tmpfs -o size=64k none "$0" && cd "$0" && (echo old; head -c 40000 /dev/zero) > a && '
        f'{sys.executable} -c "$1" "$0"; ls -A; head -c 4 a'
    )
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", steps, str(tmp_path), script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("needs a mount namespace")
    first, *rest = done.stdout.splitlines()
    assert first.startswith("resource_exhausted")
    assert "No space left on device" in first
    assert rest == ["a", "old"]


async def test_a_file_system_that_takes_no_new_files_is_named() -> None:
    path = Path("/proc/self/oom_score_adj")
    with pytest.raises(CallError, match="takes no new files") as refused:
        await run_edit(str(path), path.read_text(), "1", cwd="/")
    assert refused.value.code == "invalid_argument"


async def test_a_file_that_cannot_be_read_is_no_failure_of_the_worker() -> None:
    with pytest.raises(CallError, match="cannot edit /proc/self/mem") as refused:
        await run_edit("/proc/self/mem", "a", "b", cwd="/")
    assert refused.value.code != "internal"


async def test_a_device_is_refused_unopened() -> None:
    for device in ("/dev/tty", "/dev/zero", "/dev/ptmx"):
        with pytest.raises(CallError, match="not a regular file") as refused:
            await run_edit(device, "a", "b", cwd="/")
        assert refused.value.code == "invalid_argument"


async def test_a_path_longer_than_paths_are_is_refused_before_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "f").write_text("old")
    with trio.fail_after(20), pytest.raises(CallError, match="4096 bytes at most") as refused:
        await run_edit("a/../" * 1_000_000 + "f", "old", "new", cwd=str(tmp_path))
    assert refused.value.code == "invalid_argument"
    assert (tmp_path / "f").read_text() == "old"
