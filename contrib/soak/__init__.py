"""Random use, kills, outages, wrong clocks and damage of real mounts, compared with a model.

state     names, files and content of a filesystem
history   all states that a filesystem had, and which of them the bucket must contain
hand      a process that uses a mount, so that a hanging mount does not block the run
host      a state directory, a mountpoint and a clock
event     a kill, a takeover, a damaged object with its repair, and so on

Start at ``__main__``, which chooses events; ``events``, ``damage_events`` and ``past_events`` carry
them out. ``make soak`` runs the package.
"""
