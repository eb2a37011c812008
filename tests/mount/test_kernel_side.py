"""The kernel's side of a session without a mountpoint."""

from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.sync.kernel import NoKernel


async def test_kernel_without_a_mountpoint_holds_nothing() -> None:
    """A session has no mountpoint before its filesystem is served, and afterwards."""
    for kernel in (KernelSide(), NoKernel()):
        assert await kernel.collect() in {True, None}
        await kernel.before_turn(None)
        kernel.at_turn()
        await kernel.after_turn(None)
