"""Operations on a complete filesystem, each for one command.

mkfs:     creates the objects of a filesystem, and recognises the keys of its objects.
removal:  deletes a filesystem, its superblock last.
rollback: publishes a past txg as a new txg.
keeping:  creates and drops kept points (named points in time).

Start at the module of the command: mkfs, destroy, rollback or keep.
Below: session, opening, history, superblock.
Above: check (creating a lost lease or superblock again), mount, cli.
"""
