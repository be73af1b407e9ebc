"""Where a piece of bytes may be cut so that text never loses half a character. Pure."""

from __future__ import annotations


def cut(data: bytes, limit: int, *, final: bool) -> int:
    """How many bytes of `data` make a piece of about `limit` bytes that ends between UTF-8 characters.

    At most `limit`, except that one whole character always fits. 0 if all there is is the beginning of a character and
    the rest may still come (not `final`). Bytes that are no UTF-8 may be cut anywhere.
    """
    end = min(limit, len(data))
    for back in range(1, min(4, end) + 1):
        lead = data[end - back]
        if lead & 0xC0 == 0x80:
            continue  # inside a character, if it is one
        missing = _length(lead) - back
        if missing <= 0 or not _continues(data[end : end + missing]):
            return end
        if back < end:
            return end if final and end == len(data) else end - back
        whole = end + missing
        return whole if whole <= len(data) else (len(data) if final else 0)
    return end


def without_leading_part(data: bytes) -> bytes:
    """`data` without the end of a character that was cut off before it."""
    for index in range(min(3, len(data))):
        if data[index] & 0xC0 != 0x80:
            return data[index:]
    return data[3:]


def _length(lead: int) -> int:
    return 1 if lead < 0xC2 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4 if lead < 0xF5 else 1


def _continues(data: bytes) -> bool:
    return all(byte & 0xC0 == 0x80 for byte in data)
