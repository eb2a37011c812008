"""The content of regular files.

file_data      read, write, truncate
file_ranges    holes, SEEK_DATA, copy_file_range
block_ranges   ranges of bytes cut at the borders of blocks; pure functions
read_ahead     blocks fetched before a sequential reader asks for them

Start at ``file_data.FileData.write``.
Below: cache.block_cache, meta.tables.block_map, write_gate.
Above: filesystem.
"""
