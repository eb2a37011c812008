"""The local control socket of a mount."""
