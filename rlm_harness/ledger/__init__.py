"""The authoritative conversation: append-only JSONL, written by the harness only, read by whoever asks later.

`records` says what may stand in it; `writer` puts it on disk.
"""
