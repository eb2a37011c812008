"""Systemd units, and a trial of them in a container that boots systemd.

Start at ``container``; ``trial`` runs inside.
"""
