"""Everyday work on a filesystem: archives, git, compilers, databases, mail, photos.

step:      a timed command, with the programs and earlier steps that it needs.
material:  the input of steps, created on the disk before any measurement.
program:   a Python program of a step for which no installed command exists.

Start at ``session.run``. ``steps.STEPS`` lists the steps, and ``materials`` makes their input.
Below: subjects and local_subjects (the mounts), samples (medians), machine (CPU time).
"""
