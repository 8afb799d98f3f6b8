"""Malformed requests: `python3 dev.py fuzz --requests [--count 5000] [--seed 0] [--only N]`.

A server is asked what nobody should ask: requests with damaged JSON and bytes, lengths that are none, claims of terabytes,
bodies in chunks that are cut or wrong, bodies that come slowly or not at all; and over gRPC messages with damaged bytes. Each
answer is a result or a typed refusal; the server lives, logs no error, keeps its memory, and answers what is right as before.
Needs tsc-compiler[serve].
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np

from tests.fuzz.request_mutations import Sent, behind, bitten, good, mutated
from tests.fuzz.tally import Tally
from tests.serve.servers import Server, as_json, put, serving, sums, sums_request
from tsc.serve.messages import MESSAGES

#: Seconds until an answer, more than the server's deadline.
PATIENCE = 15
OPTIONS = ("--deadline", "2", "--body-mb", "1", "--run-mb", "64")
#: By how much a process may grow over all of it, and after how many cases it is looked at.
GROWTH, EVERY = 64 << 20, 100
_INFER = "/inference.GRPCInferenceService/ModelInfer"
#: What gRPC may say to a damaged message.
_CODES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def sent(server: Server, case: Sent) -> bytes:
    """What comes back, until it is whole or the server closes."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as stream, suppress(ConnectionError):
        for number, part in enumerate(case.parts):
            time.sleep(0.02 * bool(number))
            stream.sendall(part)
        if case.ends:
            stream.shutdown(socket.SHUT_WR)
        while part := stream.recv(1 << 16):
            found += part
            length = re.search(rb"\r\ncontent-length: (\d+)\r\n", found, re.IGNORECASE)
            if length and len(found.partition(b"\r\n\r\n")[2]) >= int(length[1]) and b"\r\n\r\n" in found:
                break
    return found


def judged(answer: bytes, case: Sent) -> str:
    """What an answer is, "failed: ..." where it is none that there should be."""
    if not answer:
        return "failed: no answer" if case.is_http else "closed"
    match = re.match(rb"HTTP/1.1 (\d+)", answer)
    body = answer.partition(b"\r\n\r\n")[2]
    if match is None:
        return f"failed: no HTTP, but {answer[:60]!r}"
    status = int(match[1])
    if status == 200:
        return "a result"
    if not 400 <= status < 500:
        return f"failed: status {status}: {body[:100]!r}"
    if body == b"Invalid HTTP request received." and not case.is_http:
        return "no HTTP"
    told = json.loads(body)
    return "refused" if list(told) == ["error"] and told["error"] and "\n" not in told["error"] else f"failed: told {told}"


def message(rng: Random) -> bytes:
    """A damaged ModelInferRequest."""
    request = good(rng)
    raw = behind(request)
    half = len(raw) // 2
    made = MESSAGES["ModelInferRequest"](
        model_name="sums", inputs=[{name: item[name] for name in ("name", "datatype", "shape")} for item in request["inputs"]],
        raw_input_contents=[raw[:half], raw[half:]])
    found: bytes = bitten(made.SerializeToString(), rng)
    return found


def asked(call: Any, data: bytes) -> str:
    try:
        call(data, timeout=PATIENCE)
    except grpc.RpcError as error:
        if error.code() in _CODES and error.details():
            return "refused"
        return f"failed: {error.code()}: {error.details()[:100]}"
    return "a result"


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) << 12


def run(count: int, seed: int, start: int = 0) -> Tally:
    """What becomes of so many requests."""
    tally = Tally("requests")
    with tempfile.TemporaryDirectory(prefix="tsc-fuzz-") as folder:
        model = put(sums(), Path(folder) / "models" / "sums.tscpack")
        right = sums_request(4)
        expected = model.run(["pooled"], right)[0].ravel()
        with (serving(Path(folder) / "models", Path(folder) / "log", *OPTIONS) as server,
              grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel):
            call = channel.unary_unary(_INFER)
            begun: dict[int, int] = {}
            for number in range(start, start + count):
                rng, begin = Random(f"{seed}/{number}"), time.perf_counter()
                if number % 5 == 4:
                    outcome = asked(call, message(rng))
                else:
                    case = mutated(rng)
                    outcome = judged(sent(server, case), case)
                tally.count(outcome, number, time.perf_counter() - begin)
                looks = number % EVERY == EVERY - 1 or number == start + count - 1
                if looks and (wrong := _unwell(server, right, expected, begun)) is not None:
                    tally.count(f"failed: afterwards {wrong}", number, 0.0)
            told = [record for record in server.records() if record["level"] == "error" or "exception" in record]
            if told:
                tally.count(f"failed: it logged {told[0]}", start, 0.0)
    return tally


def _unwell(server: Server, right: dict[str, np.ndarray], expected: np.ndarray, begun: dict[int, int]) -> str | None:
    status, text = server.ask("POST", "/v2/models/sums/infer", as_json(right, outputs=[{"name": "pooled"}]))
    if status != 200 or not np.allclose(json.loads(text)["outputs"][0]["data"], expected, rtol=1e-5):
        return f"a right request gets {status} {text[:80]!r}"
    for pid in (server.process.pid, *server.workers()):
        grown = resident(pid) - begun.setdefault(pid, resident(pid))
        if grown > GROWTH:
            return f"process {pid} has grown by {grown >> 20} MB"
    return None if len(begun) == 2 else "a process was replaced"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one case, by its number")
    given = parser.parse_args()
    tally = run(given.count, given.seed) if given.only is None else run(1, given.seed, given.only)
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
