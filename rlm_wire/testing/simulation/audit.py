"""Looking into a peer that should be at rest: what is owed, kept or open although no call is."""

# ruff: noqa: SLF001 - what users cannot see is the point

from __future__ import annotations

from rlm_wire.broker.peer import Peer


def unsettled(peer: Peer) -> list[str]:
    """What is wrong with `peer` once all of its calls have ended and every frame has arrived; empty if nothing is."""
    core = peer._connection
    window = core.limits.reassembly
    problems = {
        "calls are open in the core": bool(core._calls or core._open_here or core._open_there),
        "calls are open in the broker": bool(peer._calls or peer.handlers.open),
        "frames are queued": bool(core.queued or core.queued_frames),
        "the window of Parts for sending is not whole": core._parts_to_send.left != window,
        "the window of Parts for receiving is not whole": core._assembly._left != window,
        "messages are half assembled": bool(core._assembly._messages),
        "pings are waited for": bool(peer._pongs),
    }
    return [problem for problem, there in problems.items() if there]


def overfull(peer: Peer) -> list[str]:
    """Which buffers of `peer` hold more than they may, at any time."""
    core = peer._connection
    problems = {
        "the replay buffer": core._replay.size > max(core.limits.replay, core.limits.frame),
        "the queue": core.queued > core.limits.replay + 16 * core.limits.message,
    }
    return [problem for problem, there in problems.items() if there]
