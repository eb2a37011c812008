"""Benchmarks on mounted filesystems. `python -m contrib.bench --help` lists all benchmarks."""
