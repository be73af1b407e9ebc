"""`python -m rlm_harness` is `rlm-harness`."""

from rlm_harness.cli import main

if __name__ == "__main__":
    main()
