"""`python -m bench.tunnel ROUND_TRIP RATE`: two network namespaces with a long link between them. Needs root, Linux.

The link holds back each packet (seconds of a round trip, bytes a second), as netem does in kernels that have it; its
queue holds what it carries in a round trip, and drops what is more. So all above is real: sockets, their buffers,
congestion control. It prints the namespaces, for `nsenter`, and lasts until stdin ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

ADDRESSES = ("10.71.0.1", "10.71.0.2")
MTU = 9000  # large packets: this program is not to be what limits the link
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000


class End(msgspec.Struct):
    """One side: its device, its namespace, and what is on its way from it."""

    tunnel: int
    namespace: int
    free_at: float = 0.0
    carried: deque[tuple[float, bytes]] = msgspec.field(default_factory=deque)


def main() -> None:
    round_trip, rate = map(float, sys.argv[1:])
    one, other = (_open_end(address) for address in ADDRESSES)
    print(json.dumps([f"/proc/{os.getpid()}/fd/{end.namespace}" for end in (one, other)]), flush=True)
    while True:
        now = time.monotonic()
        for source, target in ((one, other), (other, one)):
            while source.carried and source.carried[0][0] <= now:
                os.write(target.tunnel, source.carried.popleft()[1])
        due = min((end.carried[0][0] for end in (one, other) if end.carried), default=now + 1)
        ready, _, _ = select.select([one.tunnel, other.tunnel, sys.stdin], [], [], max(due - time.monotonic(), 0))
        if sys.stdin in ready:
            return
        for end in (one, other):
            if end.tunnel in ready:
                _take(end, round_trip, rate)


def _take(end: End, round_trip: float, rate: float) -> None:
    """All packets that wait in the device."""
    while True:
        try:
            packet = os.read(end.tunnel, MTU + 100)
        except BlockingIOError:
            return
        now = time.monotonic()
        if end.free_at - now < round_trip:
            end.free_at = max(now, end.free_at) + len(packet) / rate
            end.carried.append((end.free_at + round_trip / 2, packet))


def _open_end(address: str) -> End:
    """A device in a new namespace; this process stays in the one it made last."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise SystemExit(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tunnel, _TUNSETIFF, struct.pack("16sH22x", b"far", _IFF_TUN | _IFF_NO_PI))
    for command in (
        "ip link set lo up",
        f"ip address add {address}/24 dev far",
        f"ip link set far mtu {MTU} txqueuelen 10000 up",
    ):
        subprocess.run(command.split(), check=True)
    return End(tunnel, os.open("/proc/self/ns/net", os.O_RDONLY))


def possible() -> bool:
    """Whether this machine lets us."""
    return os.geteuid() == 0 and Path("/dev/net/tun").exists()


if __name__ == "__main__":
    main()
