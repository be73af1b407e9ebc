"""The demo: a scripted model mends a small Python project, live, in a workspace of its own.

`project/` is that project, with two bugs; its modules end in `.txt` here so that nobody's tools take those for ours.
`script` is what the model does, `show` runs it and judges the end, `processes` looks for what was left running.
"""
