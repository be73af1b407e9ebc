"""How fast the wire is, as ratios to raw baselines measured in the same minute. `make bench`; not installed.

`subjects` are what is measured: each drives a server in a process of its own from a client in another. `measures` are
what is asked of them, one file a group; `lab` runs them turn by turn, `report` judges and writes.
"""
