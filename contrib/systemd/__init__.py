"""The systemd units, and a trial of the units in a container that boots systemd.

Start at ``container``; ``trial`` runs inside the container.
"""
