"""Conformance runs: test suites of other projects on a real mount (see README.md)."""
