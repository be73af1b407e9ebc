"""Watches: telling an agent what changes. `notify` is the one loop behind all path watches of a session, `paths` what
one of them covers and gathers, `table` all watches of a session, those of jobs included.
"""
