"""Python's garbage collector, which is disabled while the modules of a command are loaded.

Owns: when the garbage collector begins, and how often it runs. Does not know: commands.
The collector would run 139 times while Python loads the modules for a mount. It would take up to a
fifth of the command's CPU time, and find nearly no garbage.
Measurements: docs/design/performance.md, "Memory". Source: the documentation of the module gc.
"""

import gc
from typing import Final

# Python's garbage collector runs once allocations exceed deallocations by this number of objects.
# With the default of 700 objects, a busy daemon spends 2 % of its CPU time in the collector.
_YOUNG_OBJECTS_MAX: Final = 5_000


def postpone() -> None:
    """Disable Python's garbage collector until ``begin``."""
    gc.disable()


def begin() -> None:
    """Enable Python's garbage collector; it skips the objects of the modules loaded so far.

    Does nothing in a process that did not call ``postpone``, such as a test process.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS_MAX)
        gc.enable()
