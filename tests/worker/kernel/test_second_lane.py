"""Beside a running cell: what the kernel holds, told without running the user's code, and interrupts."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from rlm_wire.methods.kernels import KernelVariables, Variable

HOSTILE = """
import weakref, types, collections
touched = []
class Meta(type):
    __flags__ = property(lambda cls: touched.append("flags"))
    __module__ = property(lambda cls: touched.append("module"))
    def __getattribute__(cls, name): touched.append(name); return type.__getattribute__(cls, name)
class Hostile(metaclass=Meta):
    def __getattribute__(self, name): touched.append(name); return object.__getattribute__(self, name)
    def __len__(self): touched.append("len"); return 7
    def __sizeof__(self): touched.append("sizeof"); return 7
    def __repr__(self): touched.append("repr"); return ""
    def __eq__(self, other): touched.append("eq"); return True
    __hash__ = object.__hash__
    @property
    def __class__(self): touched.append("class"); return int
class Named(str):
    def __eq__(self, other): touched.append("name eq"); return False
    def __hash__(self): touched.append("name hash"); return 1
    def startswith(self, *_): touched.append("startswith"); return False
class Sub(dict):
    def __len__(self): touched.append("dict len"); return 7
hostile, sub, proxy, view = Hostile(), Sub(), None, None
proxy, view = weakref.proxy(hostile), types.MappingProxyType(Sub())
globals()[Named("odd")] = hostile
touched.clear()
"""


def shown(variables: KernelVariables) -> dict[str, tuple[str, int | None]]:
    return {variable.name: (variable.type, variable.length) for variable in variables.variables}


def test_a_namespace_is_told_by_names_types_and_sizes(agent, workshop):
    agent.ok(
        "import collections\nx = 1\ntext = 'é' * 1000\nitems = [text] * 5\nd = collections.deque([1])\n_hidden = 2"
    )
    found = workshop.run(workshop.kernels.inspect, agent.name)
    assert shown(found) == {
        "collections": ("module", None),
        "x": ("int", None),
        "text": ("str", 1000),
        "items": ("list", 5),
        "d": ("collections.deque", 1),
    }
    assert (found.total, found.running) == (5, False)
    assert {variable.name: variable.size > 900 for variable in found.variables}["text"]
    agent.ok("for i in range(2000): globals()[f'v{i}' + 'x' * 300] = i")
    many = workshop.run(workshop.kernels.inspect, agent.name)
    assert (len(many.variables), many.total) == (1000, 2006)
    assert max(len(variable.name) for variable in many.variables) == 200


def test_no_code_of_the_users_runs(agent, workshop):
    agent.ok(HOSTILE)
    found = shown(workshop.run(workshop.kernels.inspect, agent.name))
    assert found["hostile"] == ("Hostile", None)
    assert found["sub"] == ("Sub", None)
    assert found["proxy"] == ("weakref.ProxyType", None)
    assert found["view"] == ("mappingproxy", None)
    assert "odd" not in found
    assert agent.ok("touched").result == "[]"


def test_a_busy_kernel_answers_and_an_interrupt_ends_its_cell_and_nothing_else(
    agent, other_agent, workshop, tmp_path: Path
):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    kernels = workshop.kernels
    agent.ok("kept = 1")
    cell = kernels.cell(agent.name, f"now = 2.0\nopen({str(ready)!r}, 'w').close()\nwhile True: pass")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cell.run)
            await trio.to_thread.run_sync(ready.read_bytes, abandon_on_cancel=True)
            found = await kernels.inspect(agent.name)
            assert found.running
            assert Variable("now", "float", 24) in found.variables
            assert not kernels.interrupt(other_agent.name)
            assert kernels.interrupt(agent.name)

    workshop.run(run)
    assert (cell.result.status, cell.result.error.name) == ("interrupted", "KeyboardInterrupt")
    assert not kernels.interrupt(agent.name)
    assert agent.ok("kept").result == "1"


def test_an_agent_without_a_kernel_holds_nothing(agent, workshop):
    assert workshop.run(workshop.kernels.inspect, agent.name) == KernelVariables()
