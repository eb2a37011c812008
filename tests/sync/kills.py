"""A simulated kill of the process at one step."""


class Killed(BaseException):
    """The process was killed at the step."""


class KillAt:
    """A hook that kills the process at one step."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.armed = False
        self.reached = False

    def __call__(self, step: str) -> None:
        """Raise Killed at the chosen step, once."""
        if self.armed and step == self.step:
            self.armed = False
            self.reached = True
            raise Killed(step)
