"""Recurrences on the emulated GPU: in the trips of a block, not element by element."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tsc
from tests.ops import test_samples as samples
from tsc.ops import find


@pytest.mark.parametrize(("op", "domain", "number"), [
    ("LSTM", "", 0), ("GRU", "", 1), ("TreeEnsembleRegressor", "ai.onnx.ml", 0)])
def test_trips_stay_trips(op: str, domain: str, number: int) -> None:
    found = find(op, domain)
    assert found is not None and found.samples is not None
    model, _, feeds = samples._model(found, found.samples()[number], samples.OPSET)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tsc.SlowKernelWarning)
        made = tsc.compile(model, target="emu:sm_80")
    for got, want in zip(made.run(None, feeds), tsc.compile(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
