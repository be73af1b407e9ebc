"""Finds git in shell commands: cuts bash text into simple commands, also in substitutions and `bash -c`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rlm_worker.git_guard.policy import refused_token

TEXT_LIMIT: Final = 256 * 1024
"""Characters that are looked at: it is done while everything else of the worker waits."""

DEPTH_LIMIT: Final = 8
"""Commands inside of commands."""

_SHELLS: Final = frozenset(("bash", "sh", "dash", "zsh", "ksh"))
_WRAPPERS: Final = frozenset(
    [
        "builtin",
        "command",
        "coproc",
        "doas",
        "do",
        "elif",
        "else",
        "env",
        "exec",
        "if",
        "ionice",
        "nice",
        "nohup",
        "setsid",
        "stdbuf",
        "sudo",
        "then",
        "time",
        "timeout",
        "until",
        "while",
        "xargs",
        "!",
        "{",
        "(",
    ]
)
_OF_A_WRAPPER: Final = re.compile(r"-|[A-Za-z_]\w*\+?=|\d+(\.\d+)?[smhd]?$")
"""What may stand between a wrapper and its command: options, variables, durations."""

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
_HEREDOC: Final = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([^\s'\"<>&|;()]+)\2?")
_REDIRECTION: Final = re.compile(r"[<>]+[&|]?")
_GIT_ALIAS: Final = re.compile(r"\w+=\s*(\S*/)?git\b")


def refusal(command: str | Sequence[str]) -> str | None:
    """Why the bash text, or list of arguments, `command` is refused; None if it is not. Never raises."""
    found = _in_text(command, 0) if isinstance(command, str) else _in_words(list(command), 0)
    return None if found is None else explain(found)


def explain(token: str) -> str:
    return (
        f"blocked git command: {token[:200]!r} is not for use here. The history of what is checked out is there to be"
        " read; other branches, tags, remotes and reflogs are not."
    )


def _in_text(text: str, depth: int) -> str | None:
    if "git" not in text or depth > DEPTH_LIMIT:
        return None
    for words in _Cutter(text[:TEXT_LIMIT]).commands():
        if (found := _in_words(words, depth)) is not None:
            return found
    return None


def _in_words(words: list[str], depth: int) -> str | None:
    """The token for which the simple command `words` is refused."""
    words = _unwrapped(words)
    if not words:
        return None
    name, arguments = words[0].rpartition("/")[2], words[1:]
    if name == "git":
        return refused_token(arguments)
    if name == "alias":
        return next((word for word in arguments if _GIT_ALIAS.match(word)), None)
    if name == "eval":
        return _in_text(" ".join(arguments), depth + 1)
    if name in _SHELLS:
        for position, word in enumerate(arguments):
            if re.fullmatch(r"-[a-z]*c[a-z]*", word) and position + 1 < len(arguments):
                return _in_text(arguments[position + 1], depth + 1)
    return None


def _unwrapped(words: list[str]) -> list[str]:
    start = 0
    while start < len(words):
        if words[start].rpartition("/")[2] in _WRAPPERS:
            start += 1
            while start < len(words) and _OF_A_WRAPPER.match(words[start]):
                start += 1
        elif _ASSIGNMENT.match(words[start]):
            start += 1
        else:
            break
    return words[start:]


class _Cutter:
    """Reads bash text once, from left to right. What it does not understand it takes as it stands."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: list[list[str]] = []
        self._heredocs: list[tuple[str, bool]] = []

    def commands(self) -> list[list[str]]:
        while self._at < len(self._text):
            self._list(0)
            self._at += 1  # a bracket that closes nothing
        return self._found

    def _list(self, depth: int) -> None:
        """Commands up to a `)` at this level, or the end."""
        words: list[str] = []
        word: list[str] | None = None  # its pieces
        redirected = False  # the next word names a file

        def end_word() -> None:
            nonlocal word, redirected
            if word is not None and not redirected:
                words.append("".join(word))
            if word is not None:
                word, redirected = None, False

        while self._at < len(self._text):
            char = self._text[self._at]
            if char == ")" and depth:
                break
            if char in " \t\n;&|()":
                end_word()
                if char not in " \t":
                    self._found.append(words[:])
                    words.clear()
                self._at += 1
                if char == "\n":
                    self._skip_heredocs()
                elif char == "(" and depth < DEPTH_LIMIT:
                    self._list(depth + 1)
                    self._at += 1
            elif char == "#" and word is None:
                self._at = self._find("\n", self._at)
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char in "<>":
                if word is not None and "".join(word).isdigit():
                    word = None
                end_word()
                redirected = not self._redirection()
            else:
                word = word or []
                word.append(self._piece(depth))
        end_word()
        self._found.append(words[:])

    def _redirection(self) -> bool:
        """Take `>`, `2>&`, `<<EOF` and their kin; True if the word that belongs to it has been taken, too."""
        if (heredoc := _HEREDOC.match(self._text, self._at)) is not None:
            self._heredocs.append((heredoc[3], heredoc[1] == "-"))
            self._at = heredoc.end()
            return True
        match = _REDIRECTION.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return False

    def _skip_heredocs(self) -> None:
        for delimiter, indented in self._heredocs:
            while self._at < len(self._text):
                end = self._find("\n", self._at)
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.lstrip("\t") if indented else line) == delimiter:
                    break
        self._heredocs.clear()

    def _piece(self, depth: int) -> str:
        """The next piece of a word: a character, something quoted, or a substitution, which gives nothing."""
        char = self._text[self._at]
        self._at += 1
        if char == "\\":
            self._at += 1
            escaped = self._text[self._at - 1 : self._at]
            return "" if escaped == "\n" else escaped
        if char == "'":
            return self._until("'")
        if char == '"':
            return self._quoted(depth)
        if char == "`":
            self._found += _Cutter(self._until("`")).commands() if depth < DEPTH_LIMIT else []
            return ""
        if char == "$" and self._text.startswith("(", self._at) and depth < DEPTH_LIMIT:
            self._at += 1
            self._list(depth + 1)
            self._at += 1
            return ""
        return char

    def _quoted(self, depth: int) -> str:
        pieces = []
        while self._at < len(self._text) and self._text[self._at] != '"':
            if self._text[self._at] in "\\`$":
                pieces.append(self._piece(depth))
            else:
                pieces.append(self._text[self._at])
                self._at += 1
        self._at += 1
        return "".join(pieces)

    def _until(self, end: str) -> str:
        start, self._at = self._at, self._find(end, self._at) + 1
        return self._text[start : self._at - 1]

    def _find(self, what: str, start: int) -> int:
        found = self._text.find(what, start)
        return found if found >= 0 else len(self._text)
