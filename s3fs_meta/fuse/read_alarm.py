"""Interrupting blocking reads of /dev/fuse, where the extension is not used.

Owns: a timer whose signal interrupts them. Does not know: requests.
pyfuse3 polls for a request, and then reads it, with the interpreter lock held. A process that is
killed in between withdraws its request; the read, and with it every task, would block until the next
request. Interrupted (EINTR), pyfuse3 polls again. The extension reads without blocking.
Source: timer_create(2), sigevent(3type); Linux, fs/fuse/dev.c, request_wait_answer.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from typing import Final

from s3fs_meta.limits import READ_ALARM_S

_SIGNAL: Final = signal.SIGRTMIN + 7  # used by no library; SIGALRM may be
_CLOCK_MONOTONIC: Final = 1
_SIGEVENT_BYTES: Final = 64


class _Timer(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


@contextlib.contextmanager
def ringing() -> Iterator[None]:
    """Interrupt this thread, the main one, now and then; in another one nothing is done.

    Raises:
        OSError: the kernel has no timer left.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # A value of no use, the signal, and how: SIGEV_SIGNAL, which is 0.
    event = (ctypes.c_int * (_SIGEVENT_BYTES // 4))(0, 0, _SIGNAL, 0)
    timer = ctypes.c_void_p()
    whole_s, rest_ns = divmod(round(READ_ALARM_S * 1e9), 10**9)
    times = _Timer(whole_s, rest_ns, whole_s, rest_ns)
    with contextlib.ExitStack() as undo:
        before = signal.signal(_SIGNAL, lambda _number, _frame: None)
        undo.callback(signal.signal, _SIGNAL, before)
        _require(libc.timer_create(_CLOCK_MONOTONIC, event, ctypes.byref(timer)))
        undo.callback(libc.timer_delete, timer)
        _require(libc.timer_settime(timer, 0, ctypes.byref(times), None))
        yield


def _require(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
