"""`python -m bench.subjects serve|drive NAME`: one end of a subject, in its own process."""

from __future__ import annotations

import importlib
import sys

MODULES = {
    "blocking": "blocking",
    "lockstep": "lockstep",
    "grpc": "grpc_aio",
    "tcp": "wire",
    "stdio": "wire",
    "tls": "wire",
    "far": "far",
    "uncounted": "uncounted",
}

end, name = sys.argv[1:]
module = importlib.import_module(f"bench.subjects.{MODULES[name]}")
(module.serve if end == "serve" else module.drive)(name)
