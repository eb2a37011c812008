"""Python's garbage collections: none while the modules of a command are loaded.

Owns: when collections begin, and how often they run. Does not know: commands.
Python would make 139 collections while it loads the modules for a mount. They would take up to a
fifth of the command's CPU time, and find nearly no garbage.
Measurements: docs/design/performance.md, "Memory". Source: the documentation of the module gc.
"""

import gc
from typing import Final

# Python examines young objects when this many more were allocated than freed.
# With the default of 700, a busy daemon spends 2 % of its CPU time in garbage collections.
_YOUNG_OBJECTS_MAX: Final = 5_000


def postpone() -> None:
    """Disable garbage collections until ``begin``."""
    gc.disable()


def begin() -> None:
    """Enable garbage collections, which skip all existing objects: the loaded modules.

    Does nothing in a process that did not call ``postpone``, such as a test process.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS_MAX)
        gc.enable()
