"""Services: long-lived commands that an agent declares, with a readiness check and a restart policy.

`runs` is one run of a command and how it can outlive the worker, `readiness` when it counts as ready, `service` one
service over all its runs, `table` all services of a session.
"""
