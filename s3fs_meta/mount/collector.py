"""Python's garbage collector while a mount serves: the objects that it need not examine.

Owns: exempting the objects made before. A full collection examines every object with the interpreter
lock held. Libraries and the descriptions of S3 leave more than a hundred thousand objects, which are
never freed: 80 ms during which no request is answered.
"""

import gc


def set_aside() -> None:
    """Collect garbage now, and exempt all other objects from later collections."""
    gc.collect()
    gc.freeze()
