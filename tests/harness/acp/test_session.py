"""One session by itself, in a process of the test's."""

import trio
from harness.acp.client import contract

from rlm_harness.acp.contract import check_untrusted
from rlm_harness.acp.jsonrpc import RpcError
from rlm_harness.acp.opening import take_order
from rlm_harness.acp.session import Session


async def test_what_nobody_foresaw_ends_one_session_with_an_answer_to_each_prompt(
    model_server, script, workdir, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("RLM_HOME", str(tmp_path / "home"))
    model_server.answers = [script.says("One."), script.says("Two.")]

    async def show(_, update):
        shown.append(update)
        if "Two" in str(update):
            raise ZeroDivisionError("nobody foresaw this")

    async def failed(answer):
        try:
            await answer()
        except RpcError as error:
            return error.data["kind"], error.data["details"]

    shown = []
    order = take_order(check_untrusted(contract(model_server.base_url))[0], str(workdir), [])
    session = Session(order, show)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            first, *others = [session.prompt(text) for text in ("one", "two", "three")]
            assert (await first())["stopReason"] == "end_turn"
            expected = ("internal", "ZeroDivisionError: nobody foresaw this")
            assert [await failed(answer) for answer in others] == [expected] * 2
            assert await failed(session.prompt("four")) == expected
            await session.close()()
    assert "has failed" in caplog.text
