"""The id of the harness plugin for the verifiers framework, which takes top-level modules only."""

from rlm_harness.integrations.verifiers import SplitRLMHarness

__all__ = ["SplitRLMHarness"]
