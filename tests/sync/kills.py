"""Simulated kills of the process at a chosen step."""


class Killed(BaseException):
    """Raised to simulate that the process is killed."""


class KillAt:
    """A hook that simulates a kill at one chosen step."""

    def __init__(self, step: str, *, armed: bool = False) -> None:
        self.step = step
        self.armed = armed
        self.reached = False

    def __call__(self, step: str) -> None:
        """Raise Killed the first time the chosen step is reached."""
        if self.armed and step == self.step:
            self.armed = False
            self.reached = True
            raise Killed(step)
