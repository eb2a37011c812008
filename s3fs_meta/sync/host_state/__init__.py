"""The files of this host beside the database.

state_dir:        the directory of the local state: its lock, its files and their names.
quarantine_move:  moves the local state to a quarantine directory, and resumes an interrupted move.
replaced_objects: saves the objects of the bucket that a repair replaces.
request_log:      the number of requests that this host has sent to the store.
json_file:        reads small versioned JSON files, and checks their numbers.

Start at ``state_dir``.
Below: hashed_dir, state_paths.
Above: opening, superblock, lease, follower, mount.
"""
