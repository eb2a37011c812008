"""Encoding and decoding of the bucket's objects: pure functions, no I/O.

pack:        many blocks in one object, with an index.
changelog:   one transaction group; ``level``: several merged transaction groups.
image:       one metadata database as pieces and a manifest.
superblock:  the properties of a filesystem; ``key_slots``: its master key, wrapped.
lease:       the host that may write.
kept_point:  a named point in time that retention does not delete.
keyring:     the keys for hashing and encryption.

Start at ``pack``. ``envelope`` and ``compression`` wrap the other objects, ``fields`` and
``text_object`` parse untrusted JSON. docs/design/format.md defines every byte.
Below: model, limits, errors.
Above: every package that reads or writes objects.
"""
