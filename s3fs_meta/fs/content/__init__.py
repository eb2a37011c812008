"""The content of regular files.

file_data:     read, write, truncate.
file_ranges:   holes, SEEK_DATA, copy_file_range.
block_ranges:  splits ranges of bytes into blocks; pure functions.
read_ahead:    fetches blocks before a sequential reader requests them.

Start at ``file_data.FileData.write``.
Below: cache.block_cache, meta.tables.block_map, write_gate.
Above: filesystem.
"""
