"""Collecting data from the kernel that programs wrote to files that are still open.

write_back:         asks the kernel for dirty pages, in the background and before a sync.
write_back_process: the process that calls syncfs(2) on the mount.
barrier:            a hidden file whose release shows that all queued writes have arrived.

Start at ``write_back``; docs/design/durability.md explains a collection ("From the kernel to the
daemon").
Below: fs.open_files.
Above: operations, mount.kernel_side.
"""
