"""`python -m rlm_worker` is `rlm-worker`."""

from __future__ import annotations

import sys

from rlm_worker.cli import main

sys.exit(main())
