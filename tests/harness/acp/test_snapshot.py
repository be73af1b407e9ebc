"""What a snapshot counts: skills that cells call, and numbers that are there from the start."""

import msgspec
from harness.acp.client import contract

from rlm_harness.acp.contract import Contract
from rlm_harness.acp.snapshot import SKILLS_COUNTED, Counts, Progress
from rlm_harness.events import ToolFinished

SNAPSHOT = "ai.prime.rlm/session-v1"
METRICS = {
    *("num_compactions", "has_compacted", "turns_since_last_compaction", "turns_between_compactions_mean"),
    *("compaction_chars_dropped_mean", "compaction_summary_chars_mean"),
    *("ipython_input_chars_mean", "ipython_input_loc_mean"),
    *("num_ptc_calls_python", "num_ptc_calls_bash", "has_ptc"),
    *("sub_rlm_num_calls", "has_sub_rlm", "sub_rlm_num_ptc_calls_python", "sub_rlm_num_ptc_calls_bash"),
}


def progress(**policy):
    asked = contract("http://localhost/v1", policy=policy)
    return Progress(msgspec.convert(asked, Contract))


def called(agent="", **skill_calls):
    return ToolFinished("a", "ipython", "ok", "", "", 0.1, skill_calls=skill_calls, agent=agent)


async def test_calls_of_skills_are_counted_for_the_agent_and_for_those_below_it(
    open_client, new_session, model_server, script, workdir
):
    (workdir / "a.txt").write_text("one\n")
    code = "await edit('a.txt', 'one', 'two')\nprint(await bash('cat a.txt'), await bash('true'))\n"
    model_server.by_task = {
        "root": [
            script.calls("ipython", {"code": code + "await (await rlm.agent.spawn('child')).result()"}),
            script.says("done"),
        ],
        "child": [script.calls("ipython", {"code": "await bash('true')"}), script.says("I, too.")],
    }
    async with open_client() as client:
        session = await new_session(client, policy={"max_depth": 1}, skills=["edit", "bash"], builtin_tools=None)
        snapshot = (await client.prompt(session, "root"))["_meta"][SNAPSHOT]
    assert snapshot["programmatic_tool_call_stats"] == {
        "python_total": 4,
        "bash_total": 0,
        "by_tool_python": {"edit": 1, "bash": 3},
        "by_tool_bash": {},
    }
    metrics = snapshot["metrics"]
    assert (metrics["num_ptc_calls_python"], metrics["num_ptc_calls_bash"], metrics["has_ptc"]) == (3, 0, 1)
    assert (metrics["sub_rlm_num_ptc_calls_python"], metrics["sub_rlm_num_ptc_calls_bash"]) == (1, 0)
    assert (metrics["sub_rlm_num_calls"], metrics["has_sub_rlm"]) == (1, 1)
    assert all(type(number) in (int, float) for number in metrics.values())


def test_there_is_a_number_for_everything_before_anything_has_happened():
    metrics = progress(max_depth=1).snapshot(Counts())["metrics"]
    assert set(metrics) == METRICS
    assert set(metrics.values()) == {0}
    assert all(type(number) in (int, float) for number in metrics.values())


def test_agents_below_are_counted_only_where_there_may_be_some():
    alone, some = (
        progress(max_depth=0).snapshot(Counts())["metrics"],
        progress(max_depth=1).snapshot(Counts())["metrics"],
    )
    below = {"sub_rlm_num_calls", "has_sub_rlm", "sub_rlm_num_ptc_calls_python", "sub_rlm_num_ptc_calls_bash"}
    assert some.keys() - alone.keys() == below


def test_a_child_that_calls_skills_is_enough_for_the_session_to_have_done_so():
    session = progress(max_depth=1)
    session.take(called("child", bash=2))
    metrics = session.snapshot(Counts(subagents=1))["metrics"]
    assert (metrics["num_ptc_calls_python"], metrics["sub_rlm_num_ptc_calls_python"], metrics["has_ptc"]) == (0, 2, 1)


def test_names_that_cells_make_up_are_counted_but_not_kept_without_end():
    session = progress()
    for number in range(SKILLS_COUNTED + 50):
        session.take(called(**{f"skill_{number}": 1}))
    session.take(called(skill_0=1))
    stats = session.snapshot(Counts())["programmatic_tool_call_stats"]
    assert stats["python_total"] == SKILLS_COUNTED + 51
    assert len(stats["by_tool_python"]) == SKILLS_COUNTED
    assert stats["by_tool_python"]["skill_0"] == 2
