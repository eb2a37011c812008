"""A distributed object store of several processes on one machine, for trying and testing."""
