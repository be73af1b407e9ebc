"""Pictures that cells show reach a model that can see, and no other."""

import base64

import pytest
from harness.actors import Actors, cell, says

from rlm_harness.agent import Agent
from rlm_harness.conversation import PICTURE_SIZE, message_size
from rlm_harness.decisions import ToolPolicy
from rlm_harness.ledger.history import read_history
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.pictures import LARGEST, MOST, pictures_message, pictures_of
from rlm_harness.prompts import Surroundings
from rlm_harness.workspace import Workspace
from rlm_wire.methods.kernels import Display

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
SHOW = f"from IPython.display import Image, display\ndisplay(Image(data={PNG!r}, format='png'))\nprint('shown')"


@pytest.mark.parametrize("pictures", [True, False])
async def test_what_a_cell_shows_follows_its_result_if_the_model_can_see(tmp_path, worker_url, events, pictures):
    model = Actors(go=[cell(SHOW), says("a dot")])
    async with (
        Workspace.connect(worker_url) as workspace,
        create_ledger(tmp_path) as ledger,
        workspace.agent(ledger=ledger) as tools,
    ):
        policy = ToolPolicy(pictures=pictures)
        surroundings = Surroundings("/w", "linux", "3")
        agent = Agent(model, tools, ledger, events.emit, surroundings=surroundings, tool_policy=policy)
        await agent.prompt("go")
    result, *shown = model.shown["go"][1][3:]
    assert result["role"] == "tool"
    assert "shown\n" in result["content"]
    assert "[image/png" in result["content"]
    if not pictures:
        assert shown == []
        return
    (message,) = shown
    text, picture = message["content"]
    assert text["text"].startswith('<runtime_event kind="notice">')
    assert picture == {"type": "image_url", "image_url": {"url": URL}}
    assert [event["type"] for event in read_history(ledger.directory).events].count("cell_pictures") == 1


def test_what_only_claims_to_be_a_picture_is_not_shown():
    bad = [PNG[:-1], b"\x89PNG\r\n\x1a\n", b"", PNG[:8] + b"\0" * LARGEST + PNG[-8:], b"\xff\xd8\xff\xe0"]
    assert pictures_of([Display(binary={"image/png": data, "image/jpeg": data}) for data in bad]) == []
    assert pictures_of([Display(binary={"application/pdf": PNG}), Display(text={"image/svg+xml": "<svg/>"})]) == []


def test_of_a_display_in_several_forms_one_is_shown_and_of_many_the_first():
    both = Display(binary={"image/jpeg": b"\xff\xd8\xff..\xff\xd9", "image/png": PNG})
    assert [picture.kind for picture in pictures_of([both])] == ["image/png"]
    assert len(pictures_of([both] * (MOST + 1))) == MOST


def test_a_picture_counts_as_much_text_as_it_costs():
    message = pictures_message(pictures_of([Display(binary={"image/png": PNG})] * 2))
    large = pictures_message(pictures_of([Display(binary={"image/png": PNG[:8] + b"\0" * 100_000 + PNG[-8:]})] * 2))
    assert message_size(message) == message_size(large)
    assert 2 * PICTURE_SIZE < message_size(message) < 2 * PICTURE_SIZE + 300
