"""Skills that the harness runs for cells: `table` holds them, `names` says what they may be called, `search` is one.

Tools of MCP servers are others: `rlm_harness.mcp_servers`.
"""
