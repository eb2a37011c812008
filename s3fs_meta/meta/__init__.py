"""Rows: the metadata database. Synchronous."""
