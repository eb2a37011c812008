"""Collecting dirty pages from the kernel: data that programs wrote to files still open.

write_back:         asks the kernel for dirty pages, in the background and before a sync.
write_back_process: the process that calls syncfs(2) on the mount.
barrier:            a hidden file whose release shows that all queued writes have arrived.

Start at ``write_back``; docs/design/durability.md, "From the kernel to the daemon", explains a
collection.
Below: fs.open_files.
Above: operations, mount.kernel_side.
"""
