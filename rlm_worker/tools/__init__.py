"""The tools themselves, as plain async functions: bash, edit, fetch. They know nothing of sessions or of the wire."""
