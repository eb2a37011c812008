"""The kernel before anything is mounted."""

from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.sync.kernel import NoKernel


async def test_kernel_without_a_mountpoint_holds_nothing() -> None:
    """A session may run before its filesystem is served, and after."""
    for kernel in (KernelSide(), NoKernel()):
        assert await kernel.collect() in {True, None}
        await kernel.before_turn(None)
        kernel.at_turn()
        await kernel.after_turn(None)
