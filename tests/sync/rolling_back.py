"""A helper that rolls back a filesystem as the rollback command does."""

from s3fs_meta.clock import SystemClock
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.administration import rollback
from s3fs_meta.sync.administration.rollback import RolledBack
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power


async def roll_back(
    power: Power,
    to: Link,
    host: str = "a",
    hook: Hook = no_hook,
    store: ObjectStore | None = None,
) -> RolledBack:
    """Open the filesystem on a host and roll it back to a txg."""
    opened = await open_filesystem(
        store or power.store,
        StateDir(power.home / host),
        power.secret,
        SystemClock(),
        OpenOptions(),
    )
    return await rollback.roll_back(opened, to, SystemClock(), hook=hook)
