"""Tools that are not part of the program: benchmarks, conformance runs, lint rules, releases."""
