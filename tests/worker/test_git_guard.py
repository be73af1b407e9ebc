"""The git guard, case by case: what it refuses, what it lets pass, and that nothing is too strange for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_worker.git_guard import python, shell

REFUSED = {
    "git log --all": "--all",
    "git log --oneline --branches": "--branches",
    "git log --branches=feature*": "--branches=feature*",
    "git log --bran": "--bran",
    "git log --remotes --tags": "--remotes",
    "git log --glob='refs/heads/*'": "--glob=refs/heads/*",
    "git log -g": "-g",
    "git log --walk-reflogs": "--walk-reflogs",
    "git rev-list --all --count": "--all",
    "git show --reflog": "--reflog",
    "git -C sub --no-pager log --all": "--all",
    "git -c core.pager=cat log --tags": "--tags",
    "git clone https://example.org/x": "clone",
    "git fetch": "fetch",
    "git pull --rebase": "pull",
    "git ls-remote": "ls-remote",
    "git remote -v": "remote",
    "git reflog": "reflog",
    "git for-each-ref": "for-each-ref",
    "git show-ref": "show-ref",
    "git describe": "describe",
    "git tag": "tag",
    "git bundle create x HEAD": "bundle",
    "git fsck --lost-found": "fsck",
    "git branch": "branch",
    "git branch -a": "-a",
    "git branch --list 'x*'": "--list",
    "git branch --contains HEAD": "--contains",
    "git show origin/main": "origin/main",
    "git show origin/main:setup.py": "origin/main:setup.py",
    "git log HEAD..upstream/master": "HEAD..upstream/master",
    "git diff ^refs/heads/x HEAD": "^refs/heads/x",
    "git checkout FETCH_HEAD": "FETCH_HEAD",
    "git show HEAD@{1}": "HEAD@{1}",
    "git diff @{upstream}": "@{upstream}",
    "git checkout v1.2.3": "v1.2.3",
    "git restore --source=origin/main a.py": "origin/main",
    "git config alias.l 'log --all'": "alias.l",
    "git -c alias.l='log --all' l": "alias.l=log --all",
    "alias g=git": "g=git",
    # however it is wrapped
    "/usr/bin/git clone x": "clone",
    "cd x && git fetch; ls": "fetch",
    "ls | xargs -n 1 git clone": "clone",
    "A=b GIT_DIR=x git fetch": "fetch",
    "sudo -n env A=b timeout 5s git fetch": "fetch",
    "(cd x; git fetch)": "fetch",
    "{ git fetch; }": "fetch",
    "if true; then git fetch; fi": "fetch",
    "for x in a; do git fetch; done": "fetch",
    "! git fetch": "fetch",
    "echo $(git log --all)": "--all",
    'echo "x $(git log --all) y"': "--all",
    "echo `git fetch`": "fetch",
    "bash -c 'git fetch'": "fetch",
    'bash -lc "cd x; git fetch"': "fetch",
    "eval git fetch": "fetch",
    "'git' fet'ch'": "fetch",
    "git \\\n  fetch": "fetch",
    "git log 2>/dev/null --all": "--all",
    "git log >&2 --all | cat": "--all",
    "cat <<EOF\nx\nEOF\ngit fetch": "fetch",
    "git fetch &": "fetch",
}

PASSED = [
    "git log",
    "git log --oneline -5 -- --all",
    "git log HEAD~3..HEAD",
    "git log main",
    "git show 1a2b3c4",
    "git show HEAD:origin.py",
    "git status",
    "git add --all",
    "git commit --all -m 'git fetch'",
    "git push --tags",
    "git diff a.py",
    "git diff -- origin/x.py",
    "git checkout -b new",
    "git branch new",
    "git branch -d old",
    "git branch --show-current",
    "git stash list",
    "git -C sub status",
    "git",
    "git --version",
    "git -c",
    "echo git clone x",
    "echo 'git fetch'",
    "# git fetch",
    "ls # git fetch",
    "ls > git fetch",
    "grep -r 'git log --all' .",
    "cat > README <<'EOF'\ngit clone x\nEOF\nls",
    "cat <<-EOF\n\tgit fetch\n\tEOF\nls",
    "cat <<< 'git fetch'",
    "legit fetch",
    "python -c 'x'",
    "x=git; $x fetch",
]


@pytest.mark.parametrize(("command", "token"), REFUSED.items())
def test_what_looks_beyond_the_history_is_refused_and_named(command: str, token: str) -> None:
    reason = shell.refusal(command)
    assert reason is not None
    assert reason.startswith(f"blocked git command: {token!r} is not for use here")


@pytest.mark.parametrize("command", PASSED)
def test_other_commands_pass(command: str) -> None:
    assert shell.refusal(command) is None


def test_lists_of_arguments_are_looked_at_too() -> None:
    assert shell.refusal(["git", "fetch"])
    assert shell.refusal(["bash", "-c", "git fetch"])
    assert shell.refusal(["echo", "git fetch"]) is None
    assert shell.refusal([]) is None


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\nsubprocess.run(['git', 'fetch'])",
        "subprocess.check_output(args=['git', 'log', '--all'])",
        "subprocess.Popen('git fetch', shell=True)",
        "run(('git', '-C', path, 'fetch'))",
        "os.system('cd x; git fetch')",
        "os.system(f'cd {x}; git fetch')",
        "os.popen('git fetch').read()",
        "os.execvp('git', ['git', 'fetch'])",
        "await asyncio.create_subprocess_exec('git', 'fetch')",
        "await asyncio.create_subprocess_shell('git fetch')",
        "rlm.shell.run('git fetch')",
        "await bash('git fetch')",
        "get_ipython().system('git fetch')",
        "x = get_ipython().getoutput('git log --all')",
        "get_ipython().run_cell_magic('bash', '', 'ls\\ngit fetch\\n')",
        "get_ipython().run_line_magic('sx', 'git fetch')",
        "def f():\n    if True:\n        return [subprocess.run(['git', 'fetch']) for _ in x]",
    ],
)
def test_commands_written_out_in_code_are_refused(code: str) -> None:
    reason = python.refusal(code)
    assert reason is not None
    assert "'fetch'" in reason or "'--all'" in reason


@pytest.mark.parametrize(
    "code",
    [
        "print('git fetch')",
        "subprocess.run(['git', 'status'])",
        "subprocess.run(['echo', 'git', 'fetch'])",
        "subprocess.run(['git', command])",
        "x = 'git fetch'\nos.system(x)",
        "get_ipython().run_cell_magic('writefile', 'x', 'git fetch')",
        "this is not python: git fetch",
        "\0git",
        "(" * 5000 + "git",
        "run(*git)",
        "run()",
    ],
)
def test_other_code_passes(code: str) -> None:
    assert python.refusal(code) is None


WORDS = ["git", "fetch", "log", "--all", "-c", "bash", "alias", "eval", "EOF", "@{", "--", "-", "2", "\u00e9", "\ud800"]
SIGNS = [*"'\"`()\\<>&|;#{}=$ \n", "$(", "<<", ".."]
pieces = st.sampled_from(WORDS + SIGNS)


@given(st.lists(pieces, max_size=40).map("".join) | st.text())
def test_nothing_is_too_strange(text: str) -> None:
    shell.refusal(text)
    shell.refusal(text.split(" "))
    python.refusal(text)
    python.refusal(f"import os\nos.system({text!r})")


@pytest.mark.parametrize("piece", ["$(", "(", "`", '"$(', "<<EOF\n", "bash -c '", "git log ", "\\"])
def test_what_is_long_or_deep_takes_no_time(piece: str) -> None:
    """Linear: it would not end within the test's life otherwise."""
    shell.refusal("git " + piece * 200_000)
