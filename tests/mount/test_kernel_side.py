"""Tests of the calls of a session to the kernel, which do nothing without a mountpoint."""

from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.sync.kernel import NoKernel


async def test_kernel_calls_do_nothing_without_a_mountpoint() -> None:
    for kernel in (KernelSide(), NoKernel()):
        assert await kernel.collect() in {True, None}
        await kernel.before_switch(None)
        kernel.at_switch()
        await kernel.after_switch(None)
