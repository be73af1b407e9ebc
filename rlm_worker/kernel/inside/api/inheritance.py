"""Threads keep the scope of the cell that started them, as tasks do by themselves.

A thread takes on the scope of whoever starts it; in a pool, each piece of work has the scope of whoever submits it.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

from rlm_wire.broker.scopes import current_scope

_ATTRIBUTE = "_rlm_scope"


def let_threads_inherit() -> None:
    """From now on, in this process."""
    thread: Any = Thread
    pool: Any = ThreadPoolExecutor
    start, bootstrap, submit = thread.start, thread._bootstrap, pool.submit  # noqa: SLF001

    @functools.wraps(start)
    def start_with_scope(self: Thread) -> None:
        setattr(self, _ATTRIBUTE, current_scope.get())
        start(self)

    @functools.wraps(bootstrap)
    def bootstrap_in_scope(self: Thread) -> None:
        current_scope.set(getattr(self, _ATTRIBUTE, None))
        bootstrap(self)

    @functools.wraps(submit)
    def submit_with_scope(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _run_in, current_scope.get(), fn, *args, **kwargs)

    thread.start, thread._bootstrap, pool.submit = start_with_scope, bootstrap_in_scope, submit_with_scope  # noqa: SLF001


def _run_in(scope: str | None, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    token = current_scope.set(scope)
    try:
        return function(*args, **kwargs)
    finally:
        current_scope.reset(token)
