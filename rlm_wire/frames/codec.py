"""Struct ↔ bytes, for both codecs. One encoder and one frame decoder a codec; value decoders are cached by type.

Functions ending in `_untrusted` take a peer's bytes and raise RemoteProtocolError only. Values inside a frame are
decoded later, against the type of their method, by `Codec.decode_value`, which raises CallError only: wrong params
are one call's fault, not the connection's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from rlm_wire.errors import CallError, RemoteProtocolError
from rlm_wire.frames import nesting
from rlm_wire.frames.limits import MESSAGE_TEXT_LIMIT, SLICE_SIZE
from rlm_wire.frames.schema import Frame, HandshakeFrame, Part

Buffer = bytes | bytearray | memoryview


class Codec:
    """One way to write frames: `msgpack` or `json`."""

    def __init__(
        self, name: str, encoder: Any, decoder: Callable[[Any], Any], is_nested_too_deeply: Callable[[Buffer], bool]
    ) -> None:
        self.name = name
        self._encode: Callable[[Any], bytes] = encoder.encode
        self._new_decoder = decoder
        self._is_nested_too_deeply = is_nested_too_deeply
        self._decode_frame: Callable[[Buffer], Frame] = decoder(Frame).decode
        self._value_decoders: dict[Any, Callable[[Buffer], Any]] = {}
        self.slice_size = SLICE_SIZE if name == "msgpack" else SLICE_SIZE // 4 * 3  # base64 makes four bytes of three

    def encode(self, frame: Any) -> bytes:
        """Encode a frame. Raises CallError (`invalid_argument`) if a value in it cannot be encoded or is too deep."""
        try:
            body = self._encode(frame)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:  # ValueError covers lone surrogates
            raise CallError("invalid_argument", f"the value cannot be sent: {describe(error)}") from None
        if self._is_nested_too_deeply(body):
            raise CallError("invalid_argument", f"the value cannot be sent: {nesting.TOO_DEEP}")
        return body

    def decode_frame_untrusted(self, body: Buffer) -> Frame:
        """Decode one frame of an established connection; its values stay encoded and view into `body`."""
        if self._is_nested_too_deeply(body):
            raise RemoteProtocolError(f"frame refused: {nesting.TOO_DEEP}")
        try:
            return self._decode_frame(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"frame refused: {describe(error)}") from None

    def decode_value(self, value: Buffer, type_: Any, what: str) -> Any:
        """Decode params, a result or an item as `type_`. Raises CallError (`invalid_argument`) naming the field."""
        if type_ is msgspec.Raw:  # to be passed on: a copy, which stays when the receive buffer moves on
            return msgspec.Raw(bytes(value))
        decode = self._value_decoders.get(type_)
        if decode is None:
            decode = self._value_decoders[type_] = self._new_decoder(type_).decode
        try:
            return decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise CallError("invalid_argument", f"{what}: {describe(error)}") from None

    def encode_part(self, part_id: int, last: bool, data: memoryview) -> tuple[bytes] | tuple[bytes, memoryview]:
        """The body of a Part, in pieces; msgpack leaves `data` where it is."""
        if self.name == "msgpack":
            head = b"\x94\x17" + self._encode(part_id) + (b"\xc3" if last else b"\xc2")
            return head + b"\xc6" + len(data).to_bytes(4, "big"), data
        return (self._encode(Part(part_id, last, data)),)


def describe(error: Exception) -> str:
    """One bounded line about an encoding error, safe to send: never contains a lone surrogate."""
    return str(error).encode("ascii", "backslashreplace").decode()[:500] or type(error).__name__


def sendable_text(text: str) -> str:
    """Human text, fit to send: no lone surrogates, and not longer than it is useful."""
    return text[:MESSAGE_TEXT_LIMIT].encode("utf-8", "backslashreplace").decode()


def _msgpack_decoder(type_: Any) -> Any:
    return msgspec.msgpack.Decoder(type_)


def _json_decoder(type_: Any) -> Any:
    return msgspec.json.Decoder(type_)


_CODECS: dict[str, Callable[[], Codec]] = {
    "msgpack": lambda: Codec(
        "msgpack", msgspec.msgpack.Encoder(), _msgpack_decoder, nesting.is_msgpack_nested_too_deeply
    ),
    "json": lambda: Codec("json", msgspec.json.Encoder(), _json_decoder, nesting.is_json_nested_too_deeply),
}
CODEC_NAMES: Final = tuple(_CODECS)
_built: dict[str, Codec] = {}


def codec_named(name: str) -> Codec:
    """The codec `name`, one of CODEC_NAMES; built once."""
    if name not in _built:
        _built[name] = _CODECS[name]()
    return _built[name]


_encode_handshake = msgspec.json.Encoder().encode
_decode_handshake = msgspec.json.Decoder(HandshakeFrame).decode


def encode_handshake(frame: HandshakeFrame) -> bytes:
    """Handshake frames are JSON whatever codec will be agreed (spec §3)."""
    return _encode_handshake(frame)


def decode_handshake_untrusted(body: Buffer) -> HandshakeFrame:
    """Decode a frame of a stranger; `body` is within HANDSHAKE_FRAME_LIMIT already."""
    if nesting.is_json_nested_too_deeply(body):
        raise RemoteProtocolError(f"handshake refused: {nesting.TOO_DEEP}")
    try:
        return _decode_handshake(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"handshake refused: {describe(error)}") from None
