import subprocess
import sys

import pytest

import rlm_harness


def test_every_public_name_is_there():
    assert sorted(rlm_harness.__all__) == dir(rlm_harness)
    for name in rlm_harness.__all__:
        assert getattr(rlm_harness, name) is not None
    with pytest.raises(AttributeError):
        rlm_harness.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import rlm_harness", {"httpx", "trio", "msgspec"}),
        ("import rlm_harness.cli", {"httpx", "trio", "msgspec"}),
        ("import rlm_harness; rlm_harness.Workspace", {"httpx"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement, absent):
    program = f"{statement}; import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not absent & set(loaded.stdout.split())
