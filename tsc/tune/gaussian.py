"""Draws from the posterior of a Gaussian process, by BoTorch and GPyTorch (the extra `tune`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy.typing import NDArray

Array = NDArray[np.float64]


def draws(x: Array, y: Array, candidates: Array, count: int, seed: int) -> Array:
    """`count` joint samples, at candidates, of functions that have the values y at x, which are in the unit cube:
    (count, candidates). The kernel is Matern's with a length a dimension, its parameters those of the greatest marginal
    likelihood; the values may be noisy."""
    mean, deviation = float(y.mean()), max(float(y.std()), 1e-6)
    with manual_seed(seed), _one_thread():
        model = SingleTaskGP(torch.from_numpy(x), torch.from_numpy((y - mean) / deviation)[:, None])
        with suppress(ModelFittingError):  # it keeps the parameters that it begins with
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with torch.no_grad():
            samples = model.posterior(torch.from_numpy(candidates)).rsample(torch.Size([count]))
    found: Array = samples[..., 0].numpy() * deviation + mean
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """So few points gain nothing by threads, which wait for each other where compilers run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
