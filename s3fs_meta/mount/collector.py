"""What the garbage collector looks at while a mount serves.

Owns: setting aside what was made before. A full collection looks at every object there is, with the
interpreter lock held; what libraries and the descriptions of S3 leave behind are more than a hundred
thousand, 80 ms during which no request is answered. None of that ever goes.
"""

import gc


def set_aside() -> None:
    """Collect what nobody needs, and never look at the rest again."""
    gc.collect()
    gc.freeze()
