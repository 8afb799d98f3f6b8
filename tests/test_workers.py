"""Workers make the kernels that this process would make; one that fails leaves them to it, and nothing waits for it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc import frames, kernels, workers
from tsc.kernels import Order, made_bytes, order_of, workshop
from tsc.pipeline import front, lower_groups
from tsc.plan.kernel import Refusal
from tsc.sym import SymExpr, dim
from tsc.trace import Recorder

WIDTHS = (24, 40, 9, 16, 7, 33, 5)
#: A worker in which something goes wrong at the first order.
BROKEN = {
    "killed": "os.kill(os.getpid(), 9)", "gone": "os._exit(0)", "out of memory": "(_ for _ in ()).throw(MemoryError())",
    "unknown": "(_ for _ in ()).throw(KeyError('x'))", "nonsense": "b'nonsense'", "another's": "b'{}'"}


def model() -> onnx.ModelProto:
    """Layers of different widths, each a kernel of its own."""
    rng = np.random.default_rng(0)
    shapes = list(pairwise(WIDTHS))
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), f"w{k}") for k, s in enumerate(shapes)]
    nodes = []
    for k in range(len(shapes)):
        nodes += [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"y{k}"]),
                  helper.make_node("Relu", [f"y{k}"], [f"x{k + 1}"])]
    inputs = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", WIDTHS[0]])]
    outputs = [helper.make_tensor_value_info(f"x{len(shapes)}", TensorProto.FLOAT, ["n", WIDTHS[-1]])]
    return helper.make_model(helper.make_graph(nodes, "layers", inputs, outputs, weights),
                             opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def orders() -> Mapping[str, Order]:
    shop = workshop("cpu", tsc.Options(use_cache=False))
    graph, env, groups = front(model(), None, shop.recorder, shop.device)
    found = [order_of(one, graph, shop) for one in lower_groups(groups, graph, env, shop).values()]
    return {order.key(): order for order in found}


def test_a_worker_makes_what_this_process_makes(orders: Mapping[str, Order]) -> None:
    sources: list[str] = []
    pool = workers._Pool(orders, sources.append)
    pool.work()
    assert len(orders) > 2 and len(sources) == len(orders)
    for key, order in orders.items():
        assert pool.take(key) == made_bytes(order, Recorder())
    assert pool.take("another") is None


def test_an_order_in_work_is_waited_for_while_others_are_made_here(orders: Mapping[str, Order]) -> None:
    pool = workers._Pool(orders, lambda source: None)
    thread = Thread(target=pool.work)
    thread.start()
    while not pool._busy and thread.is_alive():
        time.sleep(0.001)
    found = {key: pool.take(key) for key in [*pool._busy, *orders]}
    thread.join()
    assert any(found.values()) and all(data in (None, made_bytes(orders[key], Recorder())) for key, data in found.items())


def test_packages_and_logs_do_not_depend_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "KERNELS_A_WORKER", 1)
    made = []
    for jobs in (1, 6):
        executable = tsc.compile(model(), options=tsc.Options(jobs=jobs, cache_dir=tmp_path / str(jobs)))
        executable.save(tmp_path / "model.tscpack")
        made.append(((tmp_path / "model.tscpack").read_bytes(), executable.explain()))
    assert made[0] == made[1]


@pytest.mark.parametrize("fault", BROKEN)
def test_a_worker_that_fails_leaves_its_kernels_to_this_process(
        fault: str, orders: Mapping[str, Order], monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = f"import os, tsc.workers; tsc.workers.made_bytes = lambda order, recorder: {BROKEN[fault]}; "
    monkeypatch.setattr(frames, "_MAIN", frames._MAIN.replace("from MODULE", replaced + "from MODULE"))
    pool = workers._Pool(orders, lambda source: None)
    pool.work()
    assert [pool.take(key) for key in orders] == [None] * len(orders)


def test_a_model_compiles_where_workers_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_MAIN", f"import os; {BROKEN['killed']}")
    monkeypatch.setattr(workers, "KERNELS_A_WORKER", 1)
    executable = tsc.compile(model(), options=tsc.Options(jobs=6, cache_dir=tmp_path))
    assert executable.stats["kernels"] > 1


@pytest.mark.parametrize("change", [{"_MAIN": "raise SystemExit(1)"}, {"_MAIN": "import sys; sys.stdout.write('hello' * 99)"},
                                    {"code_fingerprint": lambda: "another"}])
def test_what_is_no_worker_is_not_asked(
        change: dict[str, object], orders: Mapping[str, Order], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in change.items():
        monkeypatch.setattr(frames if name == "_MAIN" else workers, name, value)
    pool = workers._Pool(orders, lambda source: None)
    pool.work()
    assert not pool._made and not pool._busy and len(pool._waiting) == len(orders)


@pytest.mark.parametrize("python", ["/nowhere/python", "", None])
def test_a_worker_that_cannot_be_started_is_done_without(
        python: str | None, orders: Mapping[str, Order], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python)
    pool = workers._Pool(orders, lambda source: None)
    pool.work()
    assert not pool._made and len(pool._waiting) == len(orders)


def test_an_interrupt_ends_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never answers, and a user who has enough."""
    monkeypatch.setattr(frames, "_MAIN", "import time; time.sleep(600)")
    monkeypatch.setattr(workers, "KERNELS_A_WORKER", 1)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "made_bytes", interrupted)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tsc.compile(model(), options=tsc.Options(jobs=6, cache_dir=tmp_path))
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("jobs,least,known,started", [(2, 1, False, 0), (3, 1, False, 0), (16, 99, False, 0), (16, 1, True, 0),
                                                      (4, 1, False, 1), (6, 1, False, 2)])
def test_as_many_workers_as_are_worth_starting(
        jobs: int, least: int, known: bool, started: int, orders: Mapping[str, Order], monkeypatch: pytest.MonkeyPatch) -> None:
    shop = workshop("cpu", tsc.Options(use_cache=False, jobs=jobs))
    graph, env, groups = front(model(), None, shop.recorder, shop.device)
    lowered = lower_groups(groups, graph, env, shop).values()
    shop.made.update(dict.fromkeys(orders, Refusal("known")) if known else {})
    threads: list[object] = []
    monkeypatch.setattr(workers, "KERNELS_A_WORKER", least)
    monkeypatch.setattr(workers._Pool, "work", lambda self: threads.append(self))
    with workers.scheduling_ahead(lowered, graph, shop, lambda source: None) as found:
        assert (found is shop) == (not started)
    assert len(threads) == started


def test_sizes_are_equal_in_another_process() -> None:
    """Hashes of names differ there, and an expression that knows its own must not bring it along."""
    expr = (dim("a") + 1) // dim("b") + SymExpr.of(2)
    text = ("import pickle, sys; from tsc.sym import dim; found = pickle.loads(sys.stdin.buffer.read()); "
            "assert found in {(dim('a') + 1) // dim('b') + 2}")
    for seed in ("1", "2"):
        subprocess.run([sys.executable, "-c", text], input=pickle.dumps(expr), env={"PYTHONHASHSEED": seed}, check=True)
