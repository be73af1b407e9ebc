"""Passing a call on from one session to another, undecoded. Who may call what is its user's business, not decided here.

A worker stands between kernels and harness: what a cell calls and the worker does not answer itself goes on as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rlm_wire.broker.incoming import IncomingCall
from rlm_wire.broker.peer import Peer


async def relay(
    method: str, params: msgspec.Raw, call: IncomingCall[Any, Any], to: Peer, *, scope: str | None
) -> msgspec.Raw:
    """Make the call `method` at `to`, stamped with `scope`, and return its result for `call`.

    For `Service.handle_rest`. CallErrors of the other side pass through; SessionLost becomes `unavailable` at the
    caller. Cancellation: cancels the call at `to`, and waits as `Peer.call` does.
    """
    result = await to.call_encoded(method, _translate(params, call.peer, to), scope=scope)
    translated: msgspec.Raw = _translate(result, to, call.peer)
    return translated


def _translate(value: msgspec.Raw, source: Peer, target: Peer) -> Any:
    """`value` as `target`'s codec can carry it: as it is where both speak the same."""
    if source.info.codec == target.info.codec:
        return value
    return source.decode(value, Any, "a relayed value")
