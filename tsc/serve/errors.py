"""Why a request is refused, and how both protocols say so."""

from __future__ import annotations

from http import HTTPStatus

from tsc.errors import InputError, TscError


class Refusal(TscError):
    """A request that gets no result: one sentence why, and the status that HTTP has for it."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class WorkerGone(Exception):
    """The process that was asked has ended."""


def wrong(message: str) -> Refusal:
    """A request that can never be served as it is."""
    return Refusal(HTTPStatus.BAD_REQUEST, message)


def busy(message: str) -> Refusal:
    """One that may be served later."""
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS, message)


def refusal_of(error: TscError) -> Refusal:
    """What an error of the runtime means for who asked: their own fault, or the server's."""
    if isinstance(error, Refusal):
        return error
    return wrong(str(error)) if isinstance(error, InputError) else Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
