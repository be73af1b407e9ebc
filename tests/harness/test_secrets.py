import os
import subprocess
import sys

import pytest

from rlm_harness.secrets import Secret, UserError, read_secret_file, redact_all, take_secret


def test_a_secret_never_shows_itself():
    secret = Secret("sk-1")
    assert "sk-1" not in f"{secret} {secret!r} {[secret]} {vars(type(secret))}"
    assert secret.reveal() == "sk-1"


def test_secrets_within_secrets_leave_no_rest():
    secrets = [Secret(text) for text in ("sesame", "sesame-0123", "on")]
    assert redact_all("sesame-0123, sesame; and so on", secrets) == "[secret], [secret]; and so on"


def test_a_file_gives_its_secret_without_the_line_end(tmp_path):
    path = tmp_path / "key"
    path.write_text(" sk-1\n")
    assert read_secret_file(str(path)).reveal() == "sk-1"


@pytest.mark.parametrize("content", [b"", b"\n", b"sk 1", b"sk\n1", b"sk-\xff", "sk-ä".encode(), b"sk-\x00"])
def test_a_file_that_holds_no_secret_is_refused_without_quoting_it(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_secret_file(str(path))
    assert "sk" not in str(caught.value).replace(str(path), "")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_secret_file(str(tmp_path / "none"))


def test_a_secret_taken_from_the_environment_is_in_no_process_any_more():
    program = (
        "import os, subprocess\n"
        "from rlm_harness.secrets import take_secret\n"
        "assert b'sk-gone' in open('/proc/self/environ', 'rb').read()\n"
        "assert take_secret('SOME_KEY').reveal() == 'sk-gone'\n"
        "assert b'sk-gone' not in open('/proc/self/environ', 'rb').read()\n"
        "assert 'SOME_KEY' not in os.environ\n"
        "assert b'sk-gone' not in subprocess.check_output(['env'])\n"
        "assert os.environ['OTHER'] == 'stays'\n"
    )
    environment = os.environ | {"SOME_KEY": "sk-gone", "OTHER": "stays"}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


def test_an_empty_variable_is_no_secret(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "  ")
    assert take_secret("SOME_KEY") is None
    assert take_secret("SOME_KEY") is None
