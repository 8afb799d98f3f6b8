"""One server for the tests that change nothing of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tsc
from tests.serve.servers import Server, kinds, put, serving, slow, sums

for needed in ("fastapi", "uvicorn", "grpc", "prometheus_client"):
    pytest.importorskip(needed, reason="needs tsc-compiler[serve]")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tsc.Executable]:
    """The models of `server`, by name."""
    folder = tmp_path_factory.mktemp("models")
    found = {"sums": put(sums(), folder / "sums.tscpack"),
             "alone": put(sums(), folder / "alone.tscpack", "requests = 1"),
             "slow": put(slow(), folder / "slow.tscpack"), "kinds": put(kinds(), folder / "kinds" / "3" / "any.tscpack")}
    put(sums(1), folder / "kinds" / "2" / "m.tscpack")
    return found


@pytest.fixture(scope="session")
def server(models: dict[str, tsc.Executable], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one worker and `models`."""
    package = models["sums"]
    folder = next(path.parent for path in tmp_path_factory.getbasetemp().glob("models*/sums.tscpack"))
    assert package
    with serving(folder, tmp_path_factory.mktemp("log") / "log") as found:
        yield found
