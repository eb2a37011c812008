"""fsck: numbered invariants, repair, lost+found."""
