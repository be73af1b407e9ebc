"""The commands of `rlm-harness` beside `run` and `demo`, a file each: its arguments, and what it does with them."""
