"""Servers for tests: small models, a folder of their Packages, and `tsc serve` in a process of its own."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import tsc

WORDS, WIDTH = 50, 8

#: Tokens of which a mask says which are there: what is behind the mask changes nothing before it.
_SUMS = """<ir_version: 8, opset_import: ["": 17]>
sums (int64[batch, seq] ids, int64[batch, seq] mask) => (float[batch, seq, 8] tokens, float[batch, 8] pooled) {
  embedded = Gather (table, ids)
  there = Cast <to = 1> (mask)
  last = Constant <value_ints = [-1]> ()
  column = Unsqueeze (there, last)
  masked = Mul (embedded, column)
  tokens = MatMul (masked, w)
  middle = Constant <value_ints = [1]> ()
  pooled = ReduceSum <keepdims = 0> (masked, middle)
}"""
#: Takes as long as it is told to.
_SLOW = """<ir_version: 8, opset_import: ["": 17]>
slow (int64 trips, float[n] x) => (float[n] y) {
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, x) <body = each (int64 i, bool before, float[n] held) => (bool on, float[n] more) {
    on = Identity (before)
    one = Constant <value = float {1.0}> ()
    more = Add (held, one)
  }>
}"""
_KINDS = {"bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
          "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float": "FP32", "double": "FP64"}


def sums(seed: int = 0) -> onnx.ModelProto:
    """What `_SUMS` says, with random weights."""
    rng, model = np.random.default_rng(seed), onnx.parser.parse_model(_SUMS)
    for name, shape in (("table", (WORDS, WIDTH)), ("w", (WIDTH, WIDTH))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    return model


def slow() -> onnx.ModelProto:
    return onnx.parser.parse_model(_SLOW)


def kinds() -> onnx.ModelProto:
    """An output for each input, of every type."""
    given = ", ".join(f"{kind}[n] x_{kind}" for kind in _KINDS)
    made = ", ".join(f"{kind}[n] y_{kind}" for kind in _KINDS)
    body = " ".join(f"y_{kind} = Identity (x_{kind})" for kind in _KINDS)
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> kinds ({given}) => ({made}) {{ {body} }}')


def put(model: onnx.ModelProto, path: Path, settings: str = "") -> tsc.Executable:
    """Compile a model and have it lie in a folder, put there at once as a deployer does."""
    found = tsc.compile(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings:
        path.with_suffix(".toml").write_text(settings, encoding="utf-8")
    found.save(path)
    return found


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: its ports, its process, and where its log goes."""

    port: int
    grpc: int
    process: subprocess.Popen[str]
    log: Path

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """A status and a body. What is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON at a path, which has to be there."""
        status, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)

    def refused(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """The status and the sentence of a refusal."""
        status, text = self.ask(method, path, body, headers)
        assert status >= 400, text
        told = json.loads(text)
        assert list(told) == ["error"] and isinstance(told["error"], str) and told["error"]
        return status, told["error"]

    def workers(self) -> list[int]:
        """The processes that run models."""
        return [worker["pid"] for worker in self.get("/status")["workers"]]

    def records(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


def until(true: Any, seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to be so"
        time.sleep(0.02)


@contextmanager
def serving(folder: Path, log: Path, *options: str) -> Iterator[Server]:
    """`tsc serve` of a folder on free ports, ended by SIGTERM, after which nothing of it is left."""
    command = [sys.executable, "-m", "tsc", "serve", str(folder), "--http-port", "0", "--grpc-port", "0", "--threads", "1"]
    with log.open("w") as errors:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        ports = re.fullmatch(r"http://127\.0\.0\.1:(\d+) and grpc://127\.0\.0\.1:(\d+)\n", line)
        assert ports, (line, log.read_text(encoding="utf-8"))
        found = Server(int(ports[1]), int(ports[2]), process, log)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(60) == 0, log.read_text(encoding="utf-8")


def sums_request(length: int, seed: int = 0, rows: int = 1) -> dict[str, np.ndarray]:
    """Feeds of `sums`."""
    rng = np.random.default_rng([seed, length, rows])
    return {"ids": rng.integers(0, WORDS, (rows, length)), "mask": np.ones((rows, length), np.int64)}


def as_json(feeds: Mapping[str, np.ndarray], **more: Any) -> dict[str, Any]:
    """A request by JSON alone, of whole numbers or float32."""
    return {"inputs": [{"name": name, "datatype": "FP32" if array.dtype.kind == "f" else "INT64", "shape": list(array.shape),
                        "data": array.ravel().tolist()} for name, array in feeds.items()], **more}
