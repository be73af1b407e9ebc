"""Makes a host's first kernel as quick as its hundredth: runs real cells, over a real session, before anything forks.

Whatever a kernel would import, cache or allocate for its first cells is then there, and shared by all of them. When
`warm_shell` returns, its threads and loops are gone and the shell is as new.
"""

from __future__ import annotations

import socket
import threading
from typing import Final

import trio

from rlm_wire.broker.services import Service
from rlm_wire.methods.base import Request
from rlm_wire.methods.kernels import LeaveWorkspace, RunCell
from rlm_worker.kernel.inside import wire
from rlm_worker.kernel.inside.api.calls import Calls
from rlm_worker.kernel.inside.api.module import install
from rlm_worker.kernel.inside.execution import Executor
from rlm_worker.kernel.inside.record import CellRecord
from rlm_worker.kernel.inside.shell import KernelShell
from rlm_worker.kernel.link import open_link

CELLS: Final = (
    "1 + 1",
    "print('x')",
    "x = !true",
    "!true",
    "%%bash\ntrue",
    "def f():\n    return 1 / 0\nf()",
    "x =",
    "import asyncio; await asyncio.sleep(0)",
    "rlm.call('rehearse')",
    "await rlm.call('rehearse')",
    "1 + 1",
)


def warm_shell() -> tuple[KernelShell, Calls]:
    """A shell that has run `CELLS` and has forgotten them, and what its `rlm` makes calls with.

    Descriptors 1 and 2 get the output of the cells.
    """
    shell: KernelShell = KernelShell.instance()
    executor = Executor(shell, 1)
    ours, theirs = socket.socketpair()
    calls = Calls()
    shell.preload(install(calls))
    threads = [
        threading.Thread(target=trio.run, args=(_feed, ours)),
        threading.Thread(target=wire.serve, args=(theirs.detach(), executor, calls)),
    ]
    for thread in threads:
        thread.start()
    executor.run()
    for thread in threads:
        thread.join()
    executor.close()
    shell.reset(new_session=True, aggressive=False)  # type: ignore[no-untyped-call]
    shell.history_manager.outputs.clear()
    shell.record = CellRecord()
    return shell, calls


class _Rehearse(Request[None], tag="rehearse"):
    pass


async def _feed(sock: socket.socket) -> None:
    service = Service()
    service.handle(_Rehearse)(lambda _: None)
    async with open_link(sock, service, worker=True) as peer:
        for number, code in enumerate(CELLS, 1):
            await peer.call(RunCell(code, number, scope="rehearsal"))
        await peer.call(LeaveWorkspace())  # or it would wait for somebody to end it, as a kernel that was deserted
