"""Which environment variables reach the workspace: an allow-list. Nothing of the worker's own gets further.

A command sees what is named here, as the worker was started with it, and what the session gives (`env` of
`workspace.open` and of a call), laid over it and never filtered. Keys and tokens are not on the list, and a worker
does not keep them where a command could look: `seal` removes them from its own environment, `/proc` included.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from rlm_wire.errors import CallError

ALLOWED = frozenset(
    {
        "HOME", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER",  # who and where
        "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",  # what is where
        "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",  # certificates of a private authority
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS",  # what the machine grants
    }
)  # fmt: skip

FIXED = {
    "LANG": "C.UTF-8",  # text is UTF-8 whatever locale the worker was started with, and needs no locale installed
    "PYTHONUTF8": "1",
    "TERM": "dumb",  # there is no terminal
}

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PR_SET_DUMPABLE = 4


def workspace_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What commands and kernels start with, given the worker's own environment."""
    kept = {name: value for name, value in environ.items() if name in ALLOWED}
    return {**_account(), "PATH": _DEFAULT_PATH, **kept, **FIXED}


def seal() -> None:
    """Reduce this process's environment to the allow-list, where `/proc/PID/environ` shows it too.

    Also keeps other processes of the same user (unless root) from this one's memory and descriptors, which is what
    stands between a cell and the connection token. Call it once, early, with one thread.
    """
    kept = {name: value for name, value in os.environ.items() if name in ALLOWED}
    os.environ.clear()
    os.environ.update(kept)  # copies: the strings below belong to no variable any more
    stat = Path("/proc/self/stat").read_text()
    start, end = map(int, stat[stat.rindex(")") + 2 :].split()[47:49])
    if 0 < start < end:  # 0 where the kernel does not tell
        ctypes.memset(start, 0, end - start)
    let_be_read(False)


def let_be_read(allowed: bool) -> None:
    """Whether other processes of this user may read this one's memory, descriptors and environment, or trace it.

    Children by fork inherit it; another program starts as allowed. A user with CAP_SYS_PTRACE always may.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(allowed), 0, 0, 0)


def checked_environment(env: Mapping[str, str]) -> Mapping[str, str]:
    """`env`, if it can be one. Raises CallError("invalid_argument") that names the variable."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise CallError("invalid_argument", f"{name!r} cannot be an environment variable with this value")
    return env


def _account() -> dict[str, str]:
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:  # a container run under a number that has no entry
        return {"HOME": "/"}
    return {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell}
