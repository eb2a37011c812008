"""Conformance: external test suites, run on a real mount and judged. See README.md."""
