"""Conformance: other people's test programs, run on a real mount and judged. See README.md."""
