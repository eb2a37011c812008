"""Everyday work on a filesystem: archives, git, compilers, databases, mail, photos.

step       one row of the table: a command, what it needs, and how its time is taken
material   what a step works on, made on the disk before any measurement
program    the steps that no installed command does, as one process each

Start at ``session.run``; ``steps.STEPS`` is the list, ``materials`` makes the input.
Below: subjects and local_subjects (the mounts), samples (medians), machine (processor time).
"""
