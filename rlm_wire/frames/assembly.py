"""Parts into messages: what has arrived of each sliced message, and the window that bounds all of it. Spec §5.3.

The window is this side's promise of memory. It shrinks with each Part and widens when a whole message has been
consumed, so bytes that are half here and bytes that wait for a slow application count alike.
"""

from __future__ import annotations

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.limits import SLICE_SIZE, Limits
from rlm_wire.frames.schema import Part


class _Message:
    """The bytes of one message so far. In chunks of its slices' size: one buffer that grew would be copied, again and
    again; and however small the slices of a malicious peer are, the chunks are not."""

    __slots__ = ("chunks", "size")

    def __init__(self) -> None:
        self.chunks: list[bytearray] = []
        self.size = 0

    def add(self, data: memoryview) -> None:
        self.size += len(data)
        if self.chunks and len(self.chunks[-1]) < SLICE_SIZE:
            self.chunks[-1] += data
        else:
            self.chunks.append(bytearray(data))


class Assembly:
    """The sliced messages of one peer that are not whole yet."""

    def __init__(self, limits: Limits) -> None:
        self._message_limit = limits.message
        self._messages_limit = limits.reassembly // SLICE_SIZE
        self._left = limits.reassembly
        self._messages: dict[int, _Message] = {}

    def add_untrusted(self, part: Part) -> bytes | None:
        """Take a Part; the whole message if it was its last. RemoteProtocolError if it is beyond a limit, or empty."""
        length = len(part.data)
        message = self._messages.get(part.id)
        if not length:
            raise RemoteProtocolError("empty Part")
        if length + (0 if message is None else message.size) > self._message_limit:
            raise RemoteProtocolError(f"message beyond {self._message_limit} bytes refused", code="resource_exhausted")
        if length > self._left:
            raise RemoteProtocolError("Part beyond the window", code="resource_exhausted")
        if message is None:
            if len(self._messages) >= self._messages_limit:
                raise RemoteProtocolError("too many messages in Parts at once", code="resource_exhausted")
            message = self._messages[part.id] = _Message()
        self._left -= length
        message.add(part.data)
        return b"".join(self._messages.pop(part.id).chunks) if part.last else None

    def consumed(self, size: int) -> None:
        """`size` bytes of whole messages have been consumed, or will never be."""
        self._left += size
