"""Random use of real mounts, with kills, outages, wrong clocks and damage, compared with a model.

state:    names, files and content of a filesystem at one point in time.
history: all earlier states of a filesystem, and the states that the bucket must contain.
hand:     a process that uses a mount, so that a hanging mount does not block the run.
host:     a state directory, a mountpoint and a clock.
event:    a kill, a takeover, a damaged object with its repair, and so on.

Start at ``__main__``, which chooses the events. They are implemented in ``events``,
``damage_events`` and ``past_events``. ``make soak`` runs the package.
"""
