"""How far the work on a tree is."""

from s3fs_meta.fs.trees.tree_progress import TreeProgress


def test_what_is_known_to_be_left_grows_with_directories() -> None:
    """And is never less than nothing, though somebody adds names meanwhile."""
    progress = TreeProgress(1, 3).step(2, 10)
    assert progress == (3, 11)
    assert progress.step(20, 0) == (23, 0)
