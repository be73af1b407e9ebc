"""Who loads what: the rules of `lint-imports`, and what it cannot see, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def loaded_by(code: str) -> set[str]:
    """Modules that `code` loads in a fresh interpreter, beyond those it starts with."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before, sep='\\n')"
    run = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_the_package_alone_loads_nothing_else() -> None:
    assert {name for name in loaded_by("import rlm_wire") if not name.startswith("_")} == {"rlm_wire"}


@pytest.mark.parametrize("package", ["frames", "methods"])
def test_the_pure_layers_do_no_io(package: str) -> None:
    code = f"""
import importlib, pkgutil, rlm_wire.{package}
for module in pkgutil.iter_modules(rlm_wire.{package}.__path__):
    importlib.import_module(f"rlm_wire.{package}.{{module.name}}")
"""
    loaded = loaded_by(code)
    assert f"rlm_wire.{package}" in loaded
    assert not loaded & {
        "trio",
        "socket",
        "ssl",
        "asyncio",
        "threading",
        "subprocess",
        "selectors",
        "random",
        "logging",
    }


def test_the_transports_registry_loads_no_transport() -> None:
    loaded = loaded_by("import rlm_wire.transports")
    assert not loaded & {"trio", "socket", "ssl", "subprocess", "msgspec"}


def test_the_blocking_client_does_not_load_asyncio() -> None:
    loaded = loaded_by("import rlm_wire.blocking")
    assert "trio" in loaded
    assert "asyncio" not in loaded


def test_the_asyncio_client_finds_the_asyncio_of_the_standard_library() -> None:
    loaded = loaded_by("import rlm_wire.asyncio; assert rlm_wire.asyncio.asyncio.run")
    assert {"asyncio", "rlm_wire.asyncio"} <= loaded


def test_the_command_tells_of_mistakes_before_it_loads_trio() -> None:
    assert not loaded_by("import rlm_wire.__main__") & {"trio", "msgspec", "rlm_wire.endpoints"}


def test_imports_go_one_way() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    run = subprocess.run([command, "--no-cache"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout
