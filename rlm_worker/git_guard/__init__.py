"""The git guard: commands that would look beyond the history of what is checked out are refused before they run.

A courtesy to a model that is to solve a task and not to look its solution up, and no boundary: it reads what is written
literally, and whoever wants to get around it can. What must not be seen must not be in the workspace.

`policy` says which arguments of git are refused, `shell` finds git in commands, `python` finds commands in cells. Pure.
"""
