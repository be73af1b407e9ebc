"""What the workspace tells of jobs and watches, on its way into the inboxes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlm_harness.supervisor.tree import Node
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods import events

if TYPE_CHECKING:
    from rlm_harness.supervisor.supervisor import Supervisor


async def follow_workspace(supervisor: Supervisor) -> None:
    """Put what happens into the inboxes, until cancelled or the workspace is gone. Cancellation: harmless."""
    completions: dict[tuple[str, str], str] = {}  # which event tells of the end of which job of whom
    with suppress(SessionLost):
        adopted = supervisor.workspace.adopted
        async with supervisor.workspace.events(adopted.last_event if adopted is not None else 0) as happenings:
            async for event in happenings:
                if isinstance(event.content, events.EventsLost):
                    await _tell_loss(supervisor, event.content.count)
                elif (node := supervisor.tree.find(event.agent)) is not None:
                    await _take(supervisor, node, event.content, completions)


async def _take(
    supervisor: Supervisor, node: Node, happening: events.Content, completions: dict[tuple[str, str], str]
) -> None:
    content: dict[str, Any]
    match happening:
        case events.ShellCompleted(collected=False):
            content = {
                "job_id": happening.job,
                "status": happening.status,
                "exit_code": happening.exit_code,
                "output_complete": happening.output_complete,
                "output_truncated": happening.output_truncated,
                "error": happening.error,
                "text": happening.text,
            }
            event_id = await supervisor.mail.publish(
                node, "shell.completed", node.id, content, required=True, loud=False
            )
            completions[node.id, happening.job] = event_id
        case events.ShellCollected(job):
            event_id = completions.pop((node.id, job), "")
            if node.inbox.get(event_id) is not None:
                await supervisor.mail.mark_read(node, event_id)
        case events.JobOutputGrew(subscription, target, start, end):
            await _tell(supervisor, node, "watch.job", subscription, {"target": target, "start": start, "end": end})
        case events.PathChanged(subscription, target, paths, truncated):
            content = {"target": target, "paths": paths, "truncated": truncated}
            await _tell(supervisor, node, "watch.path", subscription, content)
        case events.WatchFailed(subscription, target, error):
            await _tell(supervisor, node, "watch.failed", subscription, {"target": target, "error": error})


async def _tell(supervisor: Supervisor, node: Node, kind: str, subscription: str, content: dict[str, Any]) -> None:
    with suppress(CallError):  # its inbox is full: of what it watches, it has to read some first
        await supervisor.mail.publish(node, kind, node.id, content, required=False, subscription=subscription)


async def _tell_loss(supervisor: Supervisor, count: int) -> None:
    """Nobody knows whom they concerned."""
    for node in [supervisor.tree.root, *supervisor.tree.root.descendants()]:
        if node.open:
            await supervisor.mail.publish(node, "events.lost", node.id, {"count": count}, required=True)
