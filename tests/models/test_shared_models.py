"""Exported models from both torch exporters: one compile with every dim free, right at every listed and at random shapes."""

from __future__ import annotations

import fnmatch
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tsc

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "models"
#: Run by default: one of each kind, namely an encoder, a decoder with a past, an image of any height and width, convolutions,
#: layers that carry a state, branches, trees. The others take `-m slow`.
CHOSEN = ("bert.dynamo", "llama_kv.dynamo", "vit_hw.dynamo", "super_resolution", "lgbm_regressor",
          "mnist_cntk", "silero*")
#: Where nothing but the front end runs, every family in one form at least.
FAMILIES = (*CHOSEN, "albert.dynamo", "gpt2.ts", "gpt2_kv.dynamo", "vit.dynamo", "clip_vision.dynamo", "t5.dynamo", "swin.ts",
            "byte_bidi_lstm")
#: What a model's If nodes choose by, where they are decided: its note says which sizes are valid.
DIMS = {"silero_vad_16k_op15": {"sequence": (512, 576)}}
RANDOM_SHAPES = 10


def load_recipes() -> Any:
    """The feeds.py that stands beside the models, or None where there are none."""
    path = FOLDER / "feeds.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("shared_model_feeds", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


RECIPES = load_recipes()
ENTRIES = {} if RECIPES is None else {entry["name"]: entry for entry in RECIPES.entries()}


def cases(chosen: tuple[str, ...]) -> list[Any]:
    """Every model; those that are not chosen take `-m slow`."""
    return [pytest.param(name, id=name, marks=() if matches(name, chosen) else pytest.mark.slow) for name in sorted(ENTRIES)]


pytestmark = pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")


@pytest.mark.parametrize("name", cases(CHOSEN) or ["none"])
def test_one_compile_serves_every_shape(name: str) -> None:
    entry = ENTRIES[name]
    path = FOLDER / entry["file"]
    executable = tsc.compile(path, dims=DIMS.get(name))
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output["name"] for output in entry["outputs"]]
    assert [output.name for output in executable.outputs] == names
    shapes = entry["shapes"] + RECIPES.random_shapes(entry, RANDOM_SHAPES, seed=1)
    assert len(shapes) > len(entry["shapes"]) or entry["note"]  # a note: only what is listed is valid
    requests = [RECIPES.feeds(entry, shape, seed) for seed, shape in enumerate(shapes)]
    alone = [executable.run(None, feeds) for feeds in requests]
    for shape, feeds, results in zip(shapes, requests, alone):
        for output, got, want in zip(names, results, reference.run(names, feeds)):
            assert got.dtype == want.dtype and got.shape == want.shape, f"{output} at {shape}"
            np.testing.assert_allclose(got, want, rtol=entry["rtol"], atol=entry["atol"], err_msg=f"{output} at {shape}")
    for shape, results, together in zip(shapes, alone, executable.run_many(None, requests)):
        assert [y.tobytes() for y in results] == [y.tobytes() for y in together], shape
    assert executable.stats["compiles"] == 1
