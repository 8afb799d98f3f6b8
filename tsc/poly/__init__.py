"""The polyhedral core: Program -> Scop -> dependences -> ScheduleMatrix -> schedule tree -> loop IR. isl is the authority."""

from tsc.errors import TscError


class PatternMismatch(TscError):
    """No schedule pattern fits the Program; the message says why. The caller splits the kernel.

    `compute` names the Compute that stands in the way, if it is one that could be computed where it is read instead.
    """

    def __init__(self, reason: str, compute: str = "") -> None:
        super().__init__(reason)
        self.compute = compute
