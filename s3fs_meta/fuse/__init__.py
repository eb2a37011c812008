"""The thin adaptor to pyfuse3."""
