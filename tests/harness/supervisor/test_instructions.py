"""The queue of what a parent has said: steering is for the next step, all of it for the end."""

from rlm_harness.supervisor.instructions import Instruction, Instructions


def said(name, kind="instruction"):
    return Instruction(name, kind, name, 0.0)


def names(instructions):
    return [instruction.id for instruction in instructions]


def test_steering_overtakes_and_the_rest_keeps_its_order():
    queue = Instructions()
    assert queue.take_steering() == []
    for instruction in (said("a"), said("b", "steer"), said("c"), said("d", "steer")):
        queue.add(instruction)
    assert names(queue.take_steering()) == ["b", "d"]
    assert queue.take_steering() == []
    queue.add(said("e", "steer"))
    assert len(queue) == 3
    assert names(queue.take()) == ["a", "c", "e"]
    assert not len(queue)
    assert queue.take_steering() == []


def test_the_queue_says_when_it_is_full():
    queue = Instructions(limit=2)
    queue.add(said("a"))
    assert not queue.full
    queue.add(said("b", "steer"))
    assert queue.full
    queue.take_steering()
    assert not queue.full


def test_where_a_message_comes_from_is_known_until_it_is_heard():
    queue = Instructions()
    queue.add(Instruction("a", "steer", "a", 0.0, "asked"))
    queue.add(said("b"))
    queue.take()
    assert [queue.heard(name) for name in ("a", "a", "b", "unknown")] == ["asked", None, None, None]
