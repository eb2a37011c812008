"""Random use, kills, outages, wrong clocks and damage of real mounts, compared with a model.

state     what a filesystem holds: names, files, content
history   the states that a filesystem went through, and which of them the bucket must have
hand      a process that uses a mount, so that a hanging mount does not block the run
host      a state directory, a mountpoint and a clock
event     an incident in its life: a kill, a takeover, a damaged object and its repair

Start at ``__main__``; ``rounds`` chooses events, ``events``, ``damage_events`` and ``past_events``
carry them out. ``make soak`` runs it.
"""
