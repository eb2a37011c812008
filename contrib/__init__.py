"""What comes with the project and is not part of the program: benchmarks and conformance runs."""
