"""The vocabulary that harness, worker and kernel share: one Struct per request, result and item.

No logic, and no import but msgspec: `base` says what a request is; `tools`, `kernels` and `sessions` hold the methods.
"""
