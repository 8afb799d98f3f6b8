"""BERT-base and GPT-2 at many batches and lengths, beside what torch makes of the same weights in the same precision.

torch runs the classes of `transformers`, as they are ("eager"), by a CUDA graph for each shape ("graph"), by torch.compile with
dynamic shapes ("compiled"), and by that with its CUDA graphs ("reduced"). Times of a call are the host's, from token numbers in
its memory to outputs there, or both in the device's ("near"); times on the device are of launches alone.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.hollow import read_hollow
from benchmarks.gpu.session import Session, Skip
from benchmarks.gpu.throughput import torch_graph
from benchmarks.gpu.timed import Seen
from tsc.config import Precision
from tsc.runtime.executable import Executable

Shape = tuple[int, int]
Feeds = dict[str, NDArray[np.int64]]
#: What is built, the most telling first.
BUILT: tuple[tuple[str, Precision], ...] = (("bert_base", "fp16"), ("gpt2", "fp16"), ("bert_base", "fp32"), ("gpt2", "fp32"))
#: Which of these torch.compile is asked for: it takes half a minute each.
_COMPILED = (("bert_base", "fp16", "compiled"), ("bert_base", "fp16", "reduced"), ("gpt2", "fp16", "compiled"))
_APART = {"fp32": 1e-4, "fp16": 2e-2}
_CALLS = 15


def built_name(net: str, precision: Precision) -> str:
    """What a model in a precision is called."""
    return f"{net}-{precision}"


def random_shapes() -> list[Shape]:
    """25 of up to 512 tokens, and two of more."""
    rng, found = np.random.default_rng(25), list[Shape]()
    while len(found) < 25:
        batch, length = int(rng.integers(1, 9)), int(rng.integers(1, 513))
        if batch * length <= 512 and (batch, length) not in found:
            found.append((batch, length))
    return [*found, (8, 256), (8, 512)]


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is timed in a call: ours, and torch's by what they are called; `exact` is torch's in fp32."""

    executable: Executable
    seen: Seen
    exact: Any
    ways: dict[str, Callable[..., Any]]


def measure(session: Session) -> dict[str, Any]:
    """By model and shape: milliseconds of a call, of the first at a shape, and on the device, the median, and how far outputs
    are from those of torch in fp32, as a part of the largest value."""
    try:
        torch, library = importlib.import_module("torch"), importlib.import_module("transformers")
        nets = importlib.import_module("benchmarks.transformers").TRANSFORMERS
    except ImportError as error:
        raise Skip(str(error)) from error
    where = "cuda" if session.kind == "cuda" and torch.cuda.is_available() else "cpu"
    every = session.kept.setdefault("models", {})
    for net, precision in BUILT:
        name = built_name(net, precision)
        path, rows = session.package(name, "language"), every.setdefault(name, {})
        if path is None:
            continue
        model = nets[net]()
        beside = _prepare(session, torch, library, model, (net, precision), where)
        for shape in ((1, 5), (2, 3)) if session.small else random_shapes():
            text = "x".join(map(str, shape))
            if text not in rows:
                rows[text] = _row(session, torch, beside, shape, where)
                session.save()
    wrong = [f"{name} at {shape}" for name, rows in every.items() for shape, row in rows.items()
             if not row["apart"] <= _APART[name.rpartition("-")[2]]]
    assert not wrong, f"wrong results: {', '.join(wrong)}"
    return session.kept


def _prepare(session: Session, torch: Any, library: Any, model: Any, what: tuple[str, Precision], where: str) -> _Beside:
    onnx_numpy = importlib.import_module("onnx.numpy_helper")
    weights = {one.name: onnx_numpy.to_array(one) for one in model.graph.initializer}
    net, precision = what
    path = session.package(built_name(net, precision), "language")
    assert path is not None
    package = read_hollow(path, session.manifest["hollow"][built_name(net, precision)], weights)
    seen = Seen(session.driver)
    executable = Executable(package, driver=seen)  # type: ignore[arg-type]  # it is what it wraps
    torch.backends.cuda.matmul.allow_tf32 = False
    theirs = _bert(torch, library, weights) if net == "bert_base" else _gpt2(torch, library, weights)
    exact = copy.deepcopy(theirs).to(where).eval()
    theirs = theirs.to(where, torch.float16 if precision == "fp16" and where == "cuda" else torch.float32).eval()
    ways: dict[str, Callable[..., Any]] = {"eager": theirs}
    if not session.small:
        if (net, precision, "compiled") in _COMPILED:
            ways["compiled"] = torch.compile(theirs, dynamic=True)
        if (net, precision, "reduced") in _COMPILED:
            ways["reduced"] = torch.compile(theirs, dynamic=True, mode="reduce-overhead")
    return _Beside(executable, seen, exact, ways)


def _row(session: Session, torch: Any, beside: _Beside, shape: Shape, where: str) -> dict[str, Any]:
    feeds = _feeds(shape, [one.name for one in beside.executable.inputs])

    def ours() -> NDArray[Any]:
        found: NDArray[Any] = beside.executable.run(None, feeds)[0]
        return found

    def called(way: Callable[..., Any]) -> NDArray[Any]:
        given = {name: torch.from_numpy(array).to(where) for name, array in feeds.items()}
        with torch.inference_mode():
            found: NDArray[Any] = way(**given).last_hidden_state.float().cpu().numpy()
        return found

    calls: dict[str, Callable[[], NDArray[Any]]] = {"ours": ours, **{name: partial(called, way)
                                                                    for name, way in beside.ways.items()}}
    first = {name: _milliseconds(call) for name, call in calls.items()}
    launches = beside.seen.launches
    for call in calls.values():  # what records CUDA graphs does so in the second and third call
        for _ in range(0 if session.small else 3):
            call()
    given = {name: torch.from_numpy(array).to(where) for name, array in feeds.items()}

    def near(way: Callable[..., Any]) -> None:
        with torch.inference_mode():
            way(**given)
        if where == "cuda":
            torch.cuda.synchronize()

    nears: dict[str, Callable[[], object]] = {"ours": lambda: beside.executable.run(None, given),
                                              **{name: partial(near, way) for name, way in beside.ways.items()}}
    taken, near_taken = _interleaved(calls, session), _interleaved(nears, session)
    apart_launches = [replace(launch, in_turn=False) for launch in launches]
    device = {name: session.time(some, 1 if session.small else 7) * len(some) / 1e3
              for name, some in (("ours", launches), ("ours, one after the other", apart_launches))}
    if where == "cuda":
        with torch.inference_mode():
            device["eager"] = torch_graph(torch, lambda: beside.ways["eager"](**given)) / 1e3
    want = called(beside.exact)
    apart = float(np.abs(ours() - want).max()) / float(np.abs(want).max()) if session.computes else 0.0
    return {"ms": taken, "near_ms": near_taken,
            "first_ms": {name: round(one, 3) for name, one in first.items()},
            "device_ms": {name: round(one, 4) for name, one in device.items()}, "launches": len(launches), "apart": apart}


def _interleaved(calls: Mapping[str, Callable[[], object]], session: Session) -> dict[str, float]:
    """The median milliseconds of each call, after a first of each."""
    taken = {name: list[float]() for name in calls}
    for turn in range(2 if session.small else _CALLS + 1):
        for name, call in calls.items():
            time = _milliseconds(call)
            if turn:
                taken[name].append(time)
    return {name: round(float(np.median(times)), 4) for name, times in taken.items()}


def _milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def _feeds(shape: Shape, names: list[str]) -> Feeds:
    """Random tokens; the last rows end early."""
    rng = np.random.default_rng(shape)
    mask = np.ones(shape, np.int64)
    mask[-1, (shape[1] + 1) // 2:] = 0
    made = {"input_ids": rng.integers(0, 30000, shape), "attention_mask": mask, "token_type_ids": rng.integers(0, 2, shape)}
    return {name: made[name] for name in names}


def _floats(weights: dict[str, NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Tables, matrices and vectors, in the order in which benchmarks/transformers.py makes them."""
    return (array for array in weights.values() if array.dtype == np.float32 and array.ndim)


def _bert(torch: Any, library: Any, weights: dict[str, NDArray[Any]]) -> Any:
    model, given = library.BertModel(library.BertConfig(attn_implementation="sdpa")), _floats(weights)
    inner, norm = ("weight", "bias"), "LayerNorm"
    names = [f"embeddings.{name}.weight" for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")]
    names += [f"embeddings.{norm}.{part}" for part in inner]
    for layer in range(12):
        of = [*(f"attention.self.{name}" for name in ("query", "key", "value")), "attention.output.dense",
              f"attention.output.{norm}", "intermediate.dense", "output.dense", f"output.{norm}"]
        names += [f"encoder.layer.{layer}.{name}.{part}" for name in of for part in inner]
    names += [f"pooler.dense.{part}" for part in inner]
    return _filled(torch, model, names, given, turned=True)


def _gpt2(torch: Any, library: Any, weights: dict[str, NDArray[Any]]) -> Any:
    model = library.GPT2Model(library.GPT2Config(attn_implementation="sdpa", use_cache=False))
    names = ["wte.weight", "wpe.weight"]
    for layer in range(12):
        of = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        names += [f"h.{layer}.{name}.{part}" for name in of for part in ("weight", "bias")]
    return _filled(torch, model, [*names, "ln_f.weight", "ln_f.bias"], _floats(weights), turned=False)


def _filled(torch: Any, model: Any, names: list[str], given: Iterator[NDArray[Any]], turned: bool) -> Any:
    """A model with weights by name, in order; matrices are `turned`, tables are not."""
    state = {name: torch.tensor(array.T if turned and array.ndim == 2 and "embeddings" not in name else array)
             for name, array in zip(names, given, strict=True)}
    missing = model.load_state_dict(state, strict=False).missing_keys
    left = [name for name in missing if name in dict(model.named_parameters())]
    assert not left, f"no weights for {', '.join(left)}"
    return model
