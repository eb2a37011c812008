"""Encoding and decoding of the bucket's objects: pure functions, no I/O.

pack         many blocks in one object, with an index
changelog    one transaction group; ``level``: several of them merged
image        one metadata database as pieces and a manifest
superblock   the properties of a filesystem; ``key_slots``: its master key, wrapped
lease        which host writes
keyring      the keys that hash and encrypt everything

Start at ``pack``. ``envelope`` and ``compression`` wrap the other objects, ``fields`` and
``text_object`` read JSON that may be hostile. docs/design/format.md explains every byte.
Below: model, limits, errors.
Above: every other folder.
"""
