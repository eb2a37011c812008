"""Random use, kills, outages, wrong clocks and damage of real mounts, compared with a model.

state     what a filesystem holds: names, files, content
history   the states that it went through, and which of them the bucket must have
hand      a process that touches a mount, so that a mount that hangs does not hang the run
host      a state directory, a mountpoint and a clock
event     what happens to a filesystem: a kill, a takeover, a damaged object and its repair

Start at ``__main__``; ``rounds`` chooses events, ``events``, ``damage_events`` and ``past_events``
carry them out. ``make soak`` runs it.
"""
