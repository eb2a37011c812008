"""Everyday work on a filesystem: archives, git, compilers, databases, mail, photos.

step       a command, the programs and steps that it needs, and how its time is measured
material   the input of steps, made on the disk before any measurement
program    the Python programs of steps for which no installed command exists

Start at ``session.run``. ``steps.STEPS`` lists the steps, and ``materials`` makes their input.
Below: subjects and local_subjects (the mounts), samples (medians), machine (processor time).
"""
