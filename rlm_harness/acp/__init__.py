"""The Agent Client Protocol on standard input and output: rollout frameworks and editors drive the harness by it.

`lines` and `jsonrpc` carry messages, `server` knows the methods, `session` is one conversation. What a client asks of
it is its `contract`, which `opening` makes real. `updates`, `snapshot` and `edges` are what it is told.
"""
