"""The kernel's side of a session that has no mountpoint."""

from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.sync.kernel import NoKernel


async def test_kernel_side_without_a_mountpoint_does_nothing() -> None:
    """Before a session is served, and after its end, calls for the kernel do nothing."""
    for kernel in (KernelSide(), NoKernel()):
        assert await kernel.collect() in {True, None}
        await kernel.before_turn(None)
        kernel.at_turn()
        await kernel.after_turn(None)
