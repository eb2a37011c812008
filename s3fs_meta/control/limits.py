"""Limits that only ``control`` uses, with their units and reasons."""

from typing import Final

# Maximum number of open connections. If there are more, silent clients are disconnected.
# Each connection keeps at most one request in memory (CONTROL_MESSAGE_BYTES_MAX).
CONTROL_CONNECTIONS_MAX: Final = 64
# Maximum number of requests handled concurrently, apart from short requests and waits for events.
CONTROL_REQUESTS_MAX: Final = 16
# Maximum number of requests in the queue; further requests are refused.
# A client with a queued request is never disconnected in favour of a new client.
CONTROL_QUEUED_MAX: Final = 32
# Maximum number of queued progress events per client; further events are dropped.
CONTROL_EVENTS_MAX: Final = 64
# Time after which a client that sends no request, or does not read its answer, is disconnected.
CONTROL_IDLE_S_MAX: Final = 60.0
# Time after which a silent client is disconnected if another client needs the connection.
# Even on a busy machine, a client can send its request within this time.
CONTROL_SILENCE_S_MAX: Final = 5.0
# Time without a message after which a client checks that the daemon still answers requests.
CONTROL_PROBE_S: Final = 10.0
# Time for the daemon to answer a check by a client. A check never waits in the queue.
# The answer takes longer only if the daemon is stopped, or if its event loop does not run.
CONTROL_PROBE_ANSWER_S_MAX: Final = 30.0

assert CONTROL_REQUESTS_MAX + CONTROL_QUEUED_MAX < CONTROL_CONNECTIONS_MAX, (
    "status and umount need connections of their own"
)
