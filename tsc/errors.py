"""The typed errors of `tsc`, in three families: the user's, the machine's, and ours.

Every message is one sentence that names the culprit, says what was expected, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar


class TscError(Exception):
    """Base of every error that `tsc` raises on purpose."""


class ModelError(TscError):
    """The model file is wrong: truncated, ill-typed, or contradicting the dims the user gave."""


class UnsupportedError(ModelError):
    """The model is valid but uses operators or features that `tsc` does not compile; all are listed at once."""


class DataDependentError(UnsupportedError):
    """A node needs a value of the model while it is compiled that only the run knows, by name, or those of its graph's inputs
    that it is computed from: `values`; `fractions` says that its elements need not be whole numbers."""

    def __init__(self, message: str, *values: str, fractions: bool = False) -> None:
        super().__init__(message)
        self.values = values
        self.fractions = fractions


class InputError(TscError):
    """A request is wrong: a missing or unknown input, a wrong dtype, an index out of bounds."""


class ShapeError(InputError):
    """A shape is out of its declared range, contradicts another one, or breaks a guard of the model."""


class LaunchError(TscError):
    """The machine could not do it: no compiler, not enough memory, an instruction set it lacks, a failed launch."""


class PackageError(TscError):
    """A Package is truncated, altered, of an unknown version, or built for another target."""


class InternalError(TscError):
    """A bug in `tsc`: a stage broke its own contract. Please report it with the dump (`TSC_DUMP=dir`)."""


class SlowKernelWarning(UserWarning):
    """A kernel is right but slower than it should be, since a check refused its loops: a bug in `tsc`. Please report it."""


P = ParamSpec("P")
R = TypeVar("R")


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """`function` so that nothing untyped leaves it: what is too deep or too large for this process is said to be, and anything
    else that no stage foresaw is a bug."""
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TscError:
            raise
        except RecursionError as error:
            raise UnsupportedError("the model's expressions are nested too deep to be compiled; split its widest or longest "
                                   "operators") from error
        except MemoryError as error:
            raise LaunchError("there is not enough memory to compile the model; use a machine with more") from error
        except Exception as error:
            raise InternalError(f"{type(error).__name__}: {error}") from error

    return guarded
