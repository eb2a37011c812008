"""Conformance: test suites of other projects, run on a real mount. See README.md."""
