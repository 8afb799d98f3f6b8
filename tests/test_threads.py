"""Where no thread can be started: what they would have done is done all the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tsc
from tests.graph.models import model
from tsc.errors import LaunchError
from tsc.threads import mapped, submitted


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("alone")
def test_work_is_done_here() -> None:
    assert mapped(4, lambda n: n * n, range(5)) == [0, 1, 4, 9, 16]
    with ThreadPoolExecutor(1) as pool:
        assert submitted(pool, threading.get_ident).result() == threading.get_ident()
        failed = submitted(pool, int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result()


def test_with_threads_it_is_done_there() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert submitted(pool, threading.get_ident).result() != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        mapped(2, lambda n: 1 // n, (1, 0))


@pytest.mark.usefixtures("alone")
def test_a_model_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = tsc.Options(cache_dir=tmp_path)
    executable = tsc.compile(model("y = Relu(x)", "float[n] x", "float[n] y"), options=options)
    np.testing.assert_array_equal(executable.run(None, {"x": np.float32([-1, 2])})[0], [0, 2])
    monkeypatch.setenv("TSC_CC", "/no/such/compiler")
    with pytest.raises(LaunchError, match="/no/such/compiler"):
        tsc.compile(model("y = Neg(x)", "float[n] x", "float[n] y"), options=options)
