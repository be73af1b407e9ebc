"""The authoritative conversation: append-only JSONL, written by the harness only, read by whoever asks later.

`records` says what may stand in it, `writer` puts it on disk, `files` knows the disk, `history` reads it back.
`sessions` finds the ledgers there are, and `setup` is what it takes to go on with one.
"""
