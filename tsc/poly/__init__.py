"""The polyhedral core: Program -> Scop -> dependences -> ScheduleMatrix -> schedule tree -> loop IR. isl is the authority."""

from tsc.errors import TscError


class PatternMismatch(TscError):
    """No schedule pattern fits the Program; the message says why. The caller splits the kernel."""
