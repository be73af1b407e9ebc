"""The program that makes the body of a response into text, apart from the worker: contained, killed at any moment.

Both charsets and HTML have inputs of a few hundred kilobytes that take minutes, or gigabytes. stdin is one line of JSON
(content type, how many characters are wanted) and the body; stdout is one line with the number of characters that there
are, and as many as were wanted in UTF-8. The exit code is not 0 if the body takes more than it is worth.
"""

from __future__ import annotations

import codecs
import json
import re
import resource
import sys

MEMORY_LIMIT = 1024 * 1024 * 1024
"""Bytes of address space: a tree of the largest page that is fetched, many times over."""

_CPU_LIMIT = 60
"""Seconds. The worker is not so patient, but may be kept from saying so."""

_HTML = {"text/html", "application/xhtml+xml"}
_META_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_META_REACH = 2048
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_CHARSET = re.compile(
    r"ascii|utf-(8|16|32).*|iso8859-\d+|cp\d+|koi8-\w|mac-\w+|gb\w+|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+|johab|tis-620"
)
"""What Python calls the charsets of pages. It knows others, which are no charsets or take for ever."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT, _CPU_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    content_type, wanted = json.loads(sys.stdin.buffer.readline())
    text = _text(sys.stdin.buffer.read(), content_type)
    sys.stdout.buffer.write(b"%d\n%b" % (len(text), text[:wanted].encode("utf-8", "replace")))
    sys.stdout.buffer.flush()


def _text(body: bytes, content_type: str) -> str:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _HTML:
        return _readable(_decoded(body, content_type, html=True))
    if _is_binary(body, media_type):
        return f"[{len(body)} bytes of {media_type or 'unknown type'}, not text: download it with a command]"
    return _decoded(body, content_type, html=False)


def _is_binary(body: bytes, media_type: str) -> bool:
    if media_type.startswith("text/") or any(body.startswith(mark) for mark in _BYTE_ORDER_MARKS):
        return False
    if b"\0" in body:
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return True
    return False


def _decoded(body: bytes, content_type: str, *, html: bool) -> str:
    """The text in the first charset that is named: by a byte order mark, the header, or the page itself."""
    declared = re.search(r"""charset\s*=\s*["']?([^\s"';]+)""", content_type, re.IGNORECASE)
    within = _META_CHARSET.search(body[:_META_REACH]) if html else None
    named = [name for mark, name in _BYTE_ORDER_MARKS.items() if body.startswith(mark)]
    named += [declared[1]] if declared else []
    named += [within[1].decode("ascii")] if within else []
    for name in named:
        try:
            if _CHARSET.fullmatch(codecs.lookup(name).name):
                return body.decode(name, "replace")
        except (LookupError, ValueError):  # unknown
            continue
    return body.decode("utf-8", "replace")


def _readable(page: str) -> str:
    from inscriptis import get_text  # type: ignore[import-untyped]

    try:
        text = str(get_text(page)).strip()
    except (RecursionError, ValueError):
        text = ""
    return text or page  # nested beyond all reason, or made by scripts only: the source is better than nothing


if __name__ == "__main__":
    main()
