"""The examples of where servers already are: Triton's Python backend, Ray Serve, FastAPI, an image without a compiler."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tsc
from tests.serve.servers import as_json, put, sums, sums_request, until

ROOT = Path(__file__).resolve().parents[2]
SERVING = ROOT / "examples" / "serving"


def loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class _Config:
    """What Triton hands to `auto_complete_config`."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"input": [{"name": "ids"}], "output": []}

    def as_dict(self) -> dict[str, Any]:
        return self.told

    def add_input(self, item: dict[str, Any]) -> None:
        self.told["input"].append(item)

    def add_output(self, item: dict[str, Any]) -> None:
        self.told["output"].append(item)

    def set_max_batch_size(self, most: int) -> None:
        self.told["max_batch_size"] = most


def test_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the backend's module in the form of what its documentation says of it: no Triton is here."""
    def response(tensors: list[_Tensor] | tuple[()] = (), error: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(tensors={tensor.name(): tensor.as_numpy() for tensor in tensors}, error=error)

    backend = SimpleNamespace(Tensor=_Tensor, TritonError=str, InferenceResponse=response)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    model = put(sums(), tmp_path / "1" / "model.tscpack")
    file = tmp_path / "1" / "model.py"
    file.write_bytes((SERVING / "triton" / "1" / "model.py").read_bytes())
    module = loaded(file, "triton_model")
    config = module.TritonPythonModel.auto_complete_config(_Config()).told
    assert config == {"input": [{"name": "ids"}, {"name": "mask", "data_type": "TYPE_INT64", "dims": [-1, -1]}],
                      "output": [{"name": "tokens", "data_type": "TYPE_FP32", "dims": [-1, -1, 8]},
                                 {"name": "pooled", "data_type": "TYPE_FP32", "dims": [-1, 8]}], "max_batch_size": 0}
    served = module.TritonPythonModel()
    served.initialize({"model_repository": str(tmp_path), "model_version": "1"})
    requests = [SimpleNamespace(inputs=lambda feeds=feeds: [_Tensor(*item) for item in feeds.items()],
                                requested_output_names=lambda: ["pooled"])
                for feeds in (sums_request(3), {"ids": np.zeros((1, 2), np.int64)}, sums_request(9))]
    right, wrong, other = served.execute(requests)
    np.testing.assert_array_equal(right.tensors["pooled"], model.run(["pooled"], sums_request(3))[0])
    np.testing.assert_array_equal(other.tensors["pooled"], model.run(["pooled"], sums_request(9))[0])
    assert wrong.error == "input 'mask' is missing; this model's inputs are 'ids', 'mask'" and not wrong.tensors


def post(url: str, body: object) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listed(feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in feeds.items()}


def test_fastapi(tmp_path: Path) -> None:
    assert len((SERVING / "fastapi_app.py").read_text(encoding="utf-8").splitlines()) <= 40
    assert "model.prepare()" in (SERVING / "fastapi_app.py").read_text(encoding="utf-8")
    tsc.compile(sums(), dims={"batch": (1, 8), "seq": (1, 64)}).save(path := tmp_path / "m.tscpack")
    model, port = tsc.load(path), free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(SERVING), "--port", str(port), "fastapi_app:app"]
    process = subprocess.Popen(command, env={**os.environ, "TSC_MODEL": str(path), "PYTHONPATH": str(ROOT)},
                               stderr=subprocess.DEVNULL)
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        status, found = post(url := f"http://127.0.0.1:{port}/", listed(sums_request(5, rows=2)))
        assert status == 200
        np.testing.assert_allclose(found["pooled"], model.run(["pooled"], sums_request(5, rows=2))[0], rtol=1e-6)
        for wrong, why in (({"ids": [[1]]}, "'mask' is missing"), ({"ids": [[1], [2, 3]], "mask": [[1]]}, ""),
                           (listed(sums_request(65)), "64")):
            status, found = post(url, wrong)
            assert status == 422 and why in found["detail"]
    finally:
        process.terminate()
        process.wait(30)


def test_ray_serve(tmp_path: Path) -> None:
    """A replica on a local Ray: requests that come together, one of them wrong."""
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    put(sums(), path := tmp_path / "m.tscpack")
    code = textwrap.dedent("""
        import json, sys
        from concurrent.futures import ThreadPoolExecutor
        import ray
        from ray import serve
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"port": int(sys.argv[1])})
        import ray_serve
        serve.run(ray_serve.app)
        from tests.serve.test_integrations import post
        asked = [json.loads(line) for line in sys.stdin]
        with ThreadPoolExecutor(len(asked)) as pool:
            for answer in pool.map(lambda one: post(f"http://127.0.0.1:{sys.argv[1]}/", one), asked):
                print("answer", json.dumps(answer))
        serve.shutdown()
    """)
    model = tsc.load(path)
    asked = [listed(sums_request(3 + seed % 3, seed, 1 + seed % 2)) for seed in range(8)]
    asked += [{"ids": [[1, 2]]}, {"ids": [[1, 2]], "mask": [[1, 1]]}, {"ids": [[1], [2, 3]], "mask": [[1]]}]
    done = subprocess.run([sys.executable, "-c", code, str(free_port())], input="\n".join(map(json.dumps, asked)), text=True,
                          env={**os.environ, "TSC_MODEL": str(path), "PYTHONPATH": f"{ROOT}{os.pathsep}{SERVING}"},
                          capture_output=True, timeout=170, check=False)
    answers = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("answer")]
    assert len(answers) == len(asked), done.stderr[-2000:]
    for seed, (status, found) in enumerate(answers[:8]):
        assert status == 200
        np.testing.assert_array_equal(np.array(found["pooled"], np.float32),
                                      model.run(["pooled"], sums_request(3 + seed % 3, seed, 1 + seed % 2))[0])
    assert answers[8][0] == 422 and "'mask' is missing" in answers[8][1]["error"] and answers[9][0] == 200
    assert answers[10][0] == 422 and "'ids'" in answers[10][1]["error"]


def test_the_image_has_what_serving_needs(tmp_path: Path) -> None:
    """With nothing that its pip line does not name, and no program on PATH, a Package is served."""
    text = (SERVING / "Dockerfile").read_text(encoding="utf-8")
    named = set(re.findall(r"pip install --no-cache-dir (numpy .*)", text)[0].split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = {re.split("[>=<]", wanted)[0] for wanted in project["optional-dependencies"]["serve"]}
    assert named == extra | {"numpy", "click", "cryptography"}
    put(sums(), tmp_path / "models" / "m.tscpack")
    kept = {re.split(r"[>=<;\[ ]", wanted)[0] for wanted in project["dependencies"]} - {"numpy", "click"}
    code = textwrap.dedent(f"""
        import os, sys, threading, time
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {sorted(kept | {"torch", "onnxruntime", "ray"})}:
                    raise ImportError(name + " is blocked")
        sys.meta_path.insert(0, Block())
        os.environ["PATH"] = ""
        from tsc.serve.__main__ import main
        sys.argv[1:] = [{str(tmp_path / "models")!r}, "--http-port", "0", "--no-grpc", "--threads", "1"]
        main()
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               cwd=ROOT)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        status, found = post(f"{url}/v2/models/m/infer", as_json(sums_request(3)))
        assert status == 200 and len(found["outputs"]) == 2
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(30) == 0
