"""The kernel's side of a session that has no mountpoint."""

from s3fs_meta.mount.kernel_side import KernelSide
from s3fs_meta.sync.kernel import NoKernel


async def test_kernel_side_without_a_mountpoint_does_nothing() -> None:
    """Calls for the kernel do nothing before and after the session is served."""
    for kernel in (KernelSide(), NoKernel()):
        assert await kernel.collect() in {True, None}
        await kernel.before_turn(None)
        kernel.at_turn()
        await kernel.after_turn(None)
