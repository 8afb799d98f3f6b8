"""What every test may use: goldens with one refresh switch, and the shared model files when they are there."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import hosts
from tests.emulated import avx512

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
#: Seconds that a test may take which is not marked as slow, also on a busy machine; the longest takes a tenth of it.
PATIENCE = 180

# Compiling inside a property makes single examples slow on a busy machine; that is no failure.
hypothesis.settings.register_profile("tsc", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tsc")

hosts.watch()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite tests/golden/ with what the code produces now")
    parser.addoption("--emulate", action="store_true", help="take the machine for one with AVX-512 (tests/emulated)")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported by now stays: to look through it again and again took a twentieth of the time
    gc.set_threshold(200_000, 20, 100)  # and what compiles make is hardly ever circular: another 3 to 5 hundredths


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--emulate"):
        avx512.pretend()


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    begin = time.monotonic()
    yield
    taken = time.monotonic() - begin
    if taken > PATIENCE and pyfuncitem.get_closest_marker("slow") is None:
        pytest.fail(f"took {taken:.0f} s: something waits or repeats itself; where it must, mark the test as slow")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` must equal tests/golden/<name>; `--update-goldens` writes it instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text if text.endswith("\n") else text + "\n"
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no golden {path.relative_to(ROOT)}; make it with --update-goldens and read it"
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"{path.relative_to(ROOT)} differs; refresh with --update-goldens if meant"

    return compare
