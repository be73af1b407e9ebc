"""What the scripted model says and does. Each line reacts to what it must have seen, or the script stops."""

from __future__ import annotations

from rlm_harness.model.scripted import Line

TASK = "The tests of this project fail. Find out why, mend the code (not the tests), and show that they pass."

LOOK = """\
from pathlib import Path

sources = sorted(Path(".").rglob("*.py"))
for path in sources:
    print(f"{len(path.read_text().splitlines()):4} {path}")
len(sources)"""

TRY = """\
from booking.money import split

shares = split(1000, 3)
shares, sum(shares)"""

SCRIPT = [
    Line("I will see what there is, and keep the list for later.", "ipython", {"code": LOOK}),
    Line(
        "Two modules and their tests. What do the tests say, and what does the code look like?",
        "bash",
        {"command": "python -m pytest --tb=line; cat booking/money.py"},
        expects=r"booking/money\.py",
    ),
    Line(
        "Four tests fail. `split` first: ten euros for three people.",
        "ipython",
        {"code": TRY},
        expects=r"4 failed",
    ),
    Line(
        "One cent is lost: the remainder of the division goes to nobody. It belongs to the first few, a cent each.",
        "edit",
        {
            "path": "booking/money.py",
            "old_str": "    share = total // people\n    return [share] * people\n",
            "new_str": (
                "    share, remainder = divmod(total, people)\n"
                "    return [share + 1] * remainder + [share] * (people - remainder)\n"
            ),
        },
        expects=r"\[333, 333, 333\], 999",
    ),
    Line("Does that mend it all?", "bash", {"command": "python -m pytest"}, expects=r"1 replacement"),
    Line(
        "The shares add up now. Left are the intervals: one that lies within another cuts the outer one short.",
        "bash",
        {"command": "sed -n '/^def merge/,/return merged/p' booking/intervals.py"},
        expects=r"2 failed",
    ),
    Line(
        "The end of the joined interval is the later of both ends, not the one that comes last.",
        "edit",
        {
            "path": "booking/intervals.py",
            "old_str": "merged[-1] = (merged[-1][0], end)",
            "new_str": "merged[-1] = (merged[-1][0], max(merged[-1][1], end))",
        },
        expects=r"merged\[-1\] = \(merged\[-1\]\[0\], end\)",
    ),
    Line("Now all of them once more.", "bash", {"command": "python -m pytest"}, expects=r"1 replacement"),
    Line(
        "All tests pass. There were two bugs: `split` dropped the remainder of the division, and `merge` let an "
        "interval that lies within another one shorten it. Both are mended; the tests are as they were.",
        expects=r"9 passed",
    ),
]
