"""What a model reads of a job. Pure: the words are part of what agents have learned to work with."""

from __future__ import annotations

from rlm_worker.jobs.characters import cut, without_leading_part
from rlm_worker.jobs.output import HEAD, TAIL, KeptOutput

COLLECT = 'rlm.shell.result("{job}")'
"""The expression that collects a job in a cell."""


def ended_text(output: KeptOutput) -> str:
    """All of it up to 16 KiB; else the first and last 8 KiB around a marker that says how to read on."""
    head = output.head()
    if output.total <= HEAD:
        return _decode(head)
    head = head[: cut(head, HEAD // 2, final=False)]
    tail = without_leading_part(output.tail(TAIL))
    omitted = output.total - len(head) - len(tail)
    marker = f"\n[... {omitted} bytes omitted; read on with job.read(cursor={len(head)}) ...]\n"
    return _decode(head) + marker + _decode(tail)


def running_text(job: str, output: KeptOutput, *, with_output: bool) -> str:
    """That it runs on and how to collect it, then the first 16 KiB so far, if wanted."""
    marker = f"[{job} is still running. Collect it with: {COLLECT.format(job=job)}]\n"
    if not with_output:
        return marker
    head = output.head()
    return marker + _decode(head[: cut(head, HEAD, final=False)])


def last_words(output: KeptOutput, size: int = 4096) -> str:
    """The last 4 KiB."""
    tail = output.tail(size)
    return _decode(without_leading_part(tail) if output.total > len(tail) else tail)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
