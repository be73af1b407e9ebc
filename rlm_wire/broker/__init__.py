"""Joins a Connection to a byte stream, with Trio. Knows nothing of transports, and nothing of what the methods mean.

`peer` (one session, seen from here) owns the tasks: a reader that never writes, a `writer` that owns the stream,
`keepalive`, and the handlers of `services`. `calls` are the calls made from here, `incoming` those made by the peer;
`scopes` say which cell a call belongs to.
"""
