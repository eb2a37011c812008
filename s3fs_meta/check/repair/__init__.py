"""Repairs that need more than single rows.

lost_found   the directory for inodes without a name
lost_data    the record of parts of files whose bytes are lost

``check.from_packs`` makes a filesystem anew from its packs.

Repairs are functions of an invariant: they run inside the one transaction of ``fsck``, and report
what they did. Start at ``lost_found``.
Below: context, meta.tables.
Above: rules, run.
"""
