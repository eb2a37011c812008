"""Parts that only tests use: faulty stores, crash hooks, the reference model."""
