"""MCP servers whose tools cells call as functions. The harness owns servers, sessions and credentials.

`configuration` reads which there are, `schemas` makes parameters of JSON schemas, `link` is one session with a server,
`servers` keeps and renews sessions and puts the tools into a `SkillTable`. The SDK is imported when servers are opened.
"""
