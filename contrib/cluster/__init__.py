"""A distributed object store of several processes on one machine, for tests and experiments."""
