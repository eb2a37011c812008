"""Tools beside the program: benchmarks, conformance runs, lint rules, releases."""
