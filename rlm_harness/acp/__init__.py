"""The Agent Client Protocol on standard input and output: rollout frameworks and editors drive the harness by it.

`jsonrpc` carries messages, `server` knows the methods, `session` is one conversation. What a client asks of it is its
`contract`, which `opening` makes real; then come `prompts`, and what is said meanwhile, by `steering`. `updates`,
`snapshot`, `edges` and `failures` are what it is told.
"""
