"""A seeded part of the malformed requests, and that what they look for would be seen."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.request_mutations import Sent, mutated

pytest.importorskip("fastapi", reason="needs tsc-compiler[serve]")
pytest.importorskip("grpc", reason="needs tsc-compiler[serve]")

HTTP = Sent((b"",), False, True)


def test_malformed_requests_are_refused() -> None:
    from tests.fuzz.requests import run

    tally = run(300, 3)
    assert not tally.failures, str(tally)
    assert tally.outcomes["refused"] > 100 and tally.outcomes["a result"] > 20


@pytest.mark.parametrize("answer, expected", [
    (b"", "failed"), (b"HTTP/1.1 500 x\r\n\r\n{}", "failed"), (b"garbage", "failed"),
    (b'HTTP/1.1 400 x\r\n\r\n{"detail": "x"}', "failed"), (b'HTTP/1.1 400 x\r\n\r\n{"error": ""}', "failed"),
    (b'HTTP/1.1 400 x\r\n\r\n{"error": "a sentence"}', "refused"), (b"HTTP/1.1 200 x\r\n\r\n", "a result")])
def test_what_is_no_answer_is_found(answer: bytes, expected: str) -> None:
    from tests.fuzz.requests import judged

    assert judged(answer, HTTP).startswith(expected)


def test_cases_are_the_same_again() -> None:
    assert [mutated(Random(k)) for k in range(20)] == [mutated(Random(k)) for k in range(20)]
