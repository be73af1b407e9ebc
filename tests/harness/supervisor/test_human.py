"""What a human says to the root agent: pictures too, and while it is at work."""

import trio
from harness.actors import Actors, Opened, records, says, tool


async def test_what_a_human_says_meanwhile_comes_with_the_next_step_as_it_is(opened: Opened) -> None:
    async def asked(_):
        await heard_of.wait()
        return tool("bash", command="true")

    heard_of, heard = trio.Event(), trio.Event()
    model = Actors(root=[asked, says("Blue it is.")])
    async with opened(model) as (supervisor, agent), trio.open_nursery() as nursery:
        nursery.start_soon(agent.prompt, "root")
        await model.calls("root", 1)
        root = supervisor.tree.root
        instruction = supervisor.mail.queue(root, "steer", "Make it blue.")
        root.awaited[instruction.id] = heard
        await supervisor.mail.note(root, instruction)
        assert not heard.is_set()
        heard_of.set()
        await heard.wait()
        assert not root.awaited
    assert model.shown["root"][1][-1] == {"role": "user", "content": "Make it blue."}
    (entry,) = [entry for entry in records(root.directory, "inbox.jsonl") if entry["type"] == "steer"]
    assert (entry["sender_id"], entry["text"]) == ("human", "Make it blue.")


async def test_a_prompt_may_have_pictures(opened: Opened) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;,"}}]
    model = Actors(**{"[{'type':": [says("A dot.")]})
    async with opened(model) as (_, agent):
        assert (await agent.prompt(parts)).answer == "A dot."
    assert model.shown["[{'type':"][0][-1]["content"] == parts
