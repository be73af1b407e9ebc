"""Which arguments of git are refused: those that clone or fetch, and those that name or list other refs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_REFUSED: Final = frozenset(
    [
        "bundle",
        "clone",
        "describe",
        "fetch",
        "for-each-ref",
        "fsck",
        "ls-remote",
        "pull",
        "reflog",
        "remote",
        "show-ref",
        "tag",
    ]
)

_HISTORY: Final = frozenset(
    [
        "annotate",
        "archive",
        "blame",
        "cherry",
        "diff",
        "format-patch",
        "log",
        "name-rev",
        "range-diff",
        "rev-list",
        "rev-parse",
        "shortlog",
        "show",
        "show-branch",
        "whatchanged",
    ]
)
"""Commands that go through history."""

_REVISIONS: Final = _HISTORY | frozenset(
    [
        "cat-file",
        "checkout",
        "cherry-pick",
        "ls-tree",
        "merge",
        "merge-base",
        "read-tree",
        "rebase",
        "reset",
        "restore",
        "revert",
        "switch",
        "worktree",
    ]
)
"""Commands that take revisions."""

_WIDE: Final = (
    "--all",
    "--branches",
    "--remotes",
    "--tags",
    "--glob",
    "--alternate-refs",
    "--reflog",
    "--walk-reflogs",
)
"""Options by which a command goes through other history than that of HEAD. Git takes them shortened, too."""

_LEAST_PREFIX: Final = 5

_WALKS_REFLOGS: Final = frozenset(("log", "rev-list", "show", "show-branch", "whatchanged"))
"""Commands for which `-g` is `--walk-reflogs`."""

_TAKES_VALUE: Final = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env"))
"""Options before the command whose value is the next word."""

_LISTS_BRANCHES: Final = frozenset(
    [
        "-a",
        "--all",
        "-r",
        "--remotes",
        "-l",
        "--list",
        "-v",
        "-vv",
        "--verbose",
        "--contains",
        "--no-contains",
        "--merged",
        "--no-merged",
        "--points-at",
        "--sort",
        "--format",
        "--column",
    ]
)
_NO_LISTING: Final = ("--show-current", "--unset-upstream", "--set-upstream-to", "-u", "--edit-description")

_OTHER_REF: Final = re.compile(
    r"(refs|remotes|heads|tags|origin|upstream)(/|$)|(FETCH|ORIG|MERGE)_HEAD$|v\d+(\.\d+)+|.*@\{", re.DOTALL
)


def refused_token(arguments: Sequence[str]) -> str | None:
    """The word among the `arguments` of git for which it is refused; None if it is not."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        value = words.pop(0) if option in _TAKES_VALUE and words else ""
        if "-c" in (option, option[:2]) and (value or option[2:]).lower().startswith("alias."):
            return value or option
    if not words:
        return None
    command, options, positional = words[0], *_split(words[1:])
    if command in _REFUSED:
        return command
    if command == "config":
        return next((word for word in positional if word.lower().startswith("alias.")), None)
    if command == "branch":
        return _branch_token(options, positional)
    for option in options if command in _HISTORY else ():
        name = option.partition("=")[0]
        if len(name) >= _LEAST_PREFIX - ("--all".startswith(name)) and any(wide.startswith(name) for wide in _WIDE):
            return option
        if command in _WALKS_REFLOGS and name == "-g":
            return option
    if command in _REVISIONS:
        named = [*positional, *(option.partition("=")[2] for option in options if option.startswith("--source="))]
        return next(filter(_names_other_ref, named), None)
    return None


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options and other words, up to `--`: what follows are paths."""
    before = words[: words.index("--")] if "--" in words else words
    return [word for word in before if word.startswith("-")], [word for word in before if not word.startswith("-")]


def _branch_token(options: list[str], positional: list[str]) -> str | None:
    for option in options:
        if option.partition("=")[0] in _LISTS_BRANCHES:
            return option
    if not positional and not any(option.startswith(_NO_LISTING) for option in options):
        return "branch"
    return None


def _names_other_ref(word: str) -> bool:
    """Whether a revision, a range, or a file in a revision names another ref than HEAD or a commit by its hash.

    A plain name may be a branch or a path, which cannot be told apart here, and passes.
    """
    return any(_OTHER_REF.match(end.lstrip("^")) for end in re.split(r"\.{2,3}", word))
