"""Rich results: their MIME bundles reach the result, plots by themselves, and within limits."""

from __future__ import annotations

import base64

import pytest

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "draw",
    [
        "plt.plot([1, 2])",
        "plt.plot([1, 2])\nplt.show()",
        "figure, axes = plt.subplots()\naxes.plot([1, 2])\nfigure",
        "from matplotlib.figure import Figure\nf = Figure()\nf.subplots().plot([1, 2])\nf",
    ],
)
def test_a_plot_is_a_png_without_asking_for_it(agent, draw):
    result = agent.ok(f"import matplotlib.pyplot as plt\n{draw}")
    pictures = [display.data["image/png"] for display in result.displays if "image/png" in display.data]
    assert pictures
    assert all(picture.startswith(PNG_MAGIC) for picture in pictures)
    assert agent.ok("1").displays == []


def test_a_backend_that_the_cell_chooses_is_left_alone(agent):
    result = agent.ok("import matplotlib\nmatplotlib.use('svg')\nimport matplotlib.pyplot as plt\n_ = plt.plot([1])")
    assert result.displays == []
    assert agent.ok("matplotlib.get_backend()").result == "'svg'"


def test_a_kernel_that_does_not_plot_does_not_load_matplotlib(agent):
    assert agent.ok("import sys; [m for m in sys.modules if 'matplotlib' in m]").result == "[]"


def test_display_puts_plain_text_into_the_output_and_keeps_rich_bundles(agent):
    result = agent.ok(
        "from IPython.display import HTML, Image, JSON, Markdown, display\n"
        "print('before')\ndisplay(5)\ndisplay(HTML('<b>bold</b>'))\n"
        f"display(Image(data={PNG!r}))\ndisplay(JSON({{'a': [1]}}))\nprint('after')\nMarkdown('*m*')"
    )
    assert result.output.text.startswith("before\n5\n<IPython.core.display.HTML object>\n")
    assert result.output.text.endswith("after\n")
    assert [sorted(set(display.data) - {"text/plain"}) for display in result.displays] == [
        ["text/html"],
        ["image/png"],
        ["application/json"],
        ["text/markdown"],
    ]
    assert result.displays[1].data["image/png"] == PNG
    assert result.displays[2].data["application/json"] == '{"a": [1]}'
    assert result.result == "<IPython.core.display.Markdown object>"


def test_a_bundle_may_hold_anything_and_still_arrives(agent):
    result = agent.ok(
        "class Odd: pass\n"
        "display({'text/html': 'lone \\ud800', 'application/x': {'o': Odd(), 3: None}, 'image/png': 'no base64!',"
        " 'application/json': float('nan'), 'application/octet': b'\\x00'}, raw=True)"
    )
    data = result.displays[0].data
    assert data["text/html"] == "lone \\ud800"
    assert data["application/octet"] == b"\x00"
    assert set(data) == {"text/html", "application/x", "image/png", "application/json", "application/octet"}


def test_too_many_or_too_large_displays_are_counted_instead_of_kept(agent):
    result = agent.ok("from IPython.display import HTML, display\nfor n in range(20): display(HTML(str(n)))")
    assert len(result.displays) == 16
    assert "4 displays were dropped" in result.notices[0]
    result = agent.ok("for size in (9, 7): display({'image/png': bytes(size << 20)}, raw=True)")
    assert [len(display.data["image/png"]) for display in result.displays] == [7 << 20]
    assert "1 displays were dropped" in result.notices[0]
    assert agent.ok("'usable'").result == "'usable'"
