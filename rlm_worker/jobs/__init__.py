"""Jobs: shell commands that run beside the tool calls, and their kept output.

`disk` is the room all output shares, `output` what one command printed, `characters` where text may be cut, `commands`
how a command is started and looked after, `stdin` its input, `job` one job, `texts` what a model reads of it, and
`table` all jobs of a session.
"""
