"""Benchmarks against real mounts. `python -m contrib.bench --help` lists them."""
