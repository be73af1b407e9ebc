"""The file in which a kernel notes the children it starts."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack

from rlm_worker.kernel.inside.children import Children
from rlm_worker.processes import memory_file
from rlm_worker.processes.wire import CHILD, CHILDREN_LIMIT


def test_ended_children_make_room_for_new_ones() -> None:
    size = CHILDREN_LIMIT * CHILD.size
    with (
        memory_file("children", bytes(size)) as descriptor,
        subprocess.Popen(["sleep", "1000"]) as first,
        subprocess.Popen(["sleep", "1000"]) as last,
        ExitStack() as ends,
    ):
        ends.callback(first.kill)
        ends.callback(last.kill)
        children = Children(descriptor)
        children.note(first.pid)
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
        for _ in range(2 * CHILDREN_LIMIT):
            children.note(ended.pid)
        children.note(last.pid)
        noted = {pid for pid, _ in CHILD.iter_unpack(os.pread(descriptor, size, 0))}
        assert noted >= {first.pid, last.pid}
        if (forked := os.fork()) == 0:
            children.note(1)
            os._exit(0)
        os.waitpid(forked, 0)
        assert 1 not in {pid for pid, _ in CHILD.iter_unpack(os.pread(descriptor, size, 0))}
