"""The harness within other frameworks, one module for each, imported only where that framework is."""
