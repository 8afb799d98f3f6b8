"""A server's life: files that come and go, processes that are killed, more than it can do, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tsc
from tests.serve.servers import Server, as_json, put, serving, slow, sums, sums_request, until

INFER = "/v2/models/{}/infer"


def slow_request(trips: int) -> dict[str, object]:
    return as_json({"trips": np.array(trips), "x": np.zeros(3, np.float32)})


def pooled(server: Server, name: str, length: int) -> np.ndarray:
    status, text = server.ask("POST", INFER.format(name), as_json(sums_request(length), outputs=[{"name": "pooled"}]))
    assert status == 200, text
    return np.array(json.loads(text)["outputs"][0]["data"], np.float32)


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """So many trips of `slow` take a second here."""
    model, seconds = tsc.compile(slow()), []
    for _ in range(5):
        begin = time.perf_counter()
        model.run(None, {"trips": np.array(2000), "x": np.zeros(3, np.float32)})
        seconds.append(time.perf_counter() - begin)
    yield int(2000 / min(seconds))


def replaced(model: tsc.Executable, path: Path) -> None:
    model.save(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def test_models_come_change_and_go(tmp_path: Path) -> None:
    """While requests come all the time, none is lost, and each gets what one of the versions gives."""
    folder, one, other = tmp_path / "models", tsc.compile(sums(0)), tsc.compile(sums(1))
    put(sums(0), folder / "m.tscpack")
    expected = [model.run(["pooled"], sums_request(5))[0].ravel() for model in (one, other)]
    with serving(folder, tmp_path / "log", "--workers", "2") as server:
        answers, stop = [], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answers.append(pooled(server, "m", 5))

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask) for _ in range(4)]
            for model, now in ((other, 1), (one, 0), (other, 1)):
                replaced(model, folder / "m.tscpack")
                until(lambda now=now: np.allclose(pooled(server, "m", 5), expected[now], rtol=1e-5))
            stop.set()
            for each in asked:
                each.result()
        assert len(answers) > 20
        assert all(any(np.allclose(answer, known, rtol=1e-5) for known in expected) for answer in answers)
        put(sums(0), folder / "m" / "2" / "m.tscpack")  # a second version of it, which is the one that is meant now
        until(lambda: server.get("/v2/models/m")["versions"] == ["1", "2"])
        np.testing.assert_allclose(pooled(server, "m", 5), expected[0], rtol=1e-5)
        np.testing.assert_allclose(pooled(server, "m/versions/1", 5), expected[1], rtol=1e-5)
        (folder / "m.tscpack").write_bytes((folder / "m.tscpack").read_bytes()[:5000])  # cut off in place
        until(lambda: any(m["reason"] for m in json.loads(server.ask("POST", "/v2/repository/index")[1])))
        (folder / "m.tscpack").unlink()
        shutil.rmtree(folder / "m")
        until(lambda: server.ask("GET", "/v2/models/m/ready")[0] == 404)
        until(lambda: all(worker["models"] == 0 for worker in server.get("/status")["workers"]))


def test_what_cannot_be_served_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.tscpack").write_bytes(b"no Package")
    put(sums(), tmp_path / "odd.tscpack", "rows = 3")
    put(sums(), tmp_path / "good.tscpack")
    for name in ("two", "other"):
        put(sums(), tmp_path / "two" / "1" / f"{name}.tscpack")  # which of both is meant?
    with serving(tmp_path, tmp_path / "log") as server:
        assert server.get("/v2/models/good/ready")["ready"]
        index = {m["name"]: m for m in json.loads(server.ask("POST", "/v2/repository/index")[1])}
        assert set(index) == {"broken", "odd", "good"} and "'rows'" in index["odd"]["reason"] and index["broken"]["reason"]
        status, why = server.refused("POST", INFER.format("odd"), as_json(sums_request(2)))
        assert status == 404 and "'rows'" in why
        (tmp_path / "odd.toml").write_text("requests = 3", encoding="utf-8")  # mended settings are looked at again
        until(lambda: server.ask("GET", "/v2/models/odd/ready")[0] == 200)


def test_a_killed_process_is_replaced(tmp_path: Path, trips: int) -> None:
    put(slow(), tmp_path / "slow.tscpack")
    put(sums(), tmp_path / "sums.tscpack")
    with serving(tmp_path, tmp_path / "log", "--workers", "2") as server, ThreadPoolExecutor(2) as pool:
        before = server.workers()
        asked = [pool.submit(server.ask, "POST", INFER.format("slow"), slow_request(3 * trips)) for _ in range(2)]
        until(lambda: next(m for m in server.get("/status")["models"] if m["name"] == "slow")["pending"] == 2)
        time.sleep(0.2)
        os.kill(before[0], signal.SIGKILL)
        statuses = sorted(each.result()[0] for each in asked)
        assert statuses == [200, 503]
        for length in range(1, 9):
            pooled(server, "sums", length)
        until(lambda: (after := server.workers())[0] != before[0] and after[1] == before[1])
        assert [w["restarts"] for w in server.get("/status")["workers"]] == [1, 0]


def test_more_than_it_can_do(tmp_path: Path, trips: int) -> None:
    put(slow(), tmp_path / "slow.tscpack")
    options = ("--requests", "3", "--deadline", "2", "--body-mb", "1", "--run-mb", "1")
    with serving(tmp_path, tmp_path / "log", *options) as server, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: server.ask("POST", INFER.format("slow"), slow_request(trips // 3)), range(12)))
        statuses = [status for status, _ in answers]
        assert statuses.count(429) >= 5 and set(statuses) <= {200, 429, 504} and statuses.count(200) >= 1
        assert all("error" in json.loads(text) for status, text in answers if status != 200)
        status, why = server.refused("POST", INFER.format("slow"), slow_request(30 * trips))
        assert status == 504 and "2 s" in why
        until(lambda: server.get("/status")["models"][0]["pending"] == 0)
        assert server.refused("POST", INFER.format("slow"), slow_request(trips) | {"parameters": {"timeout": 1000}})[0] == 504
        until(lambda: server.ask("POST", INFER.format("slow"), slow_request(0))[0] == 200)
        assert server.refused("POST", INFER.format("slow"), b" " * (1 << 20) + b"{}")[0] == 413
        large = as_json({"trips": np.array(0), "x": np.zeros(0, np.float32)})
        large["inputs"][1] |= {"shape": [150_000], "data": [0] * 150_000}
        status, why = server.refused("POST", INFER.format("slow"), large)
        assert status == 400 and "bytes, more than" in why
        status, told = _raw(server, b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                            + b"80000\r\n" + bytes(0x80000) + b"\r\n" + b"80001\r\n" + bytes(0x80001) + b"\r\n0\r\n\r\n")
        assert status == 413 and b"error" in told  # nobody said before how long it is
        begin = time.monotonic()
        status, told = _raw(server, b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        assert status == 408 and b"did not come" in told and time.monotonic() - begin < 20


def test_what_has_no_end_is_ended(tmp_path: Path) -> None:
    """A run that nobody waits for any more does not keep others from running."""
    put(slow(), tmp_path / "slow.tscpack")
    with serving(tmp_path, tmp_path / "log", "--deadline", "1") as server:
        before = server.workers()
        assert server.refused("POST", INFER.format("slow"), slow_request(10**9))[0] == 504
        until(lambda: server.ask("POST", INFER.format("slow"), slow_request(3))[0] == 200)
        assert server.workers() != before and server.get("/status")["workers"][0]["restarts"] == 1


def _raw(server: Server, sent: bytes) -> tuple[int, bytes]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        with suppress(ConnectionError):  # it may have heard enough
            stream.sendall(sent)
        found = b""
        while part := stream.recv(1 << 16):
            found += part
            if found.endswith(b"}"):
                break
    return int(found.split(b" ", 2)[1]), found


def test_what_runs_ends_before_the_server_does(tmp_path: Path, trips: int) -> None:
    put(slow(), tmp_path / "slow.tscpack")
    with serving(tmp_path, tmp_path / "log") as server, ThreadPoolExecutor(3) as pool:
        workers = server.workers()
        asked = [pool.submit(server.ask, "POST", INFER.format("slow"), slow_request(trips)) for _ in range(2)]
        until(lambda: server.get("/status")["models"][0]["pending"] == 2)
        server.process.send_signal(signal.SIGTERM)
        assert [each.result()[0] for each in asked] == [200, 200]
        assert server.process.wait(30) == 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_signed_models_alone(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="needs tsc-compiler[sign]")
    from click.testing import CliRunner

    from tsc.cli import cli
    from tsc.runtime.signing import generate

    generate(key := tmp_path / "key")
    put(sums(), signed := tmp_path / "models" / "signed.tscpack")
    put(sums(), tmp_path / "models" / "unsigned.tscpack")
    assert CliRunner().invoke(cli, ["pack", "sign", str(signed), "--key", str(key)]).exit_code == 0
    with serving(tmp_path / "models", tmp_path / "log", "--trust", f"{key}.pub") as server:
        assert server.ask("GET", "/v2/models/signed/ready")[0] == 200
        assert "signed" in server.refused("GET", "/v2/models/unsigned")[1]
        assert pooled(server, "signed", 3).shape == (8,)


def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from tsc.cli import cli

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = CliRunner().invoke(cli, ["serve", str(tmp_path), "--http-port", str(taken.getsockname()[1]), "--no-grpc"])
    assert isinstance(found.exception, tsc.LaunchError) and "is not to be had" in str(found.exception)
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    monkeypatch.delitem(__import__("sys").modules, "tsc.serve.server")
    found = CliRunner().invoke(cli, ["serve", str(tmp_path)])
    assert isinstance(found.exception, tsc.InputError) and "tsc-compiler[serve]" in str(found.exception)


def test_a_head_that_does_not_come(tmp_path: Path) -> None:
    """A connection whose request never begins, or begins letter by letter, is closed; one that asks again after a while not."""
    put(sums(), tmp_path / "sums.tscpack")
    with serving(tmp_path, tmp_path / "log", "--deadline", "1.5") as server:
        silent, dribbling = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(2))
        ask = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
        begin = time.monotonic()
        with suppress(OSError):
            for letter in ask:
                dribbling.sendall(bytes([letter]))
                time.sleep(0.1)
        assert time.monotonic() - begin < 4.2, "all letters were taken"
        for closed in (silent, dribbling):
            closed.settimeout(10)
            with suppress(ConnectionResetError):
                assert closed.recv(1) == b""
        good = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        for _ in range(4):  # the wait between two requests has another limit
            good.sendall(ask)
            answer = b""
            while b"}" not in answer:
                answer += (some := good.recv(4096))
                assert some, "closed"
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.6)
        for connection in (silent, dribbling, good):
            connection.close()
