"""Modules of PyTorch: `tsc.compile(module, example_args=…)` and `torch.compile(backend="tsc")`, one compile for ten shapes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsc
from tsc.errors import InputError, LaunchError, ModelError
from tsc.from_torch import is_module
from tsc.torch_backend import backend

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
Made = tuple[Any, Callable[[int, int], tuple[Any, ...]], list[tuple[int, int]]]

#: No size is 1 or 0: of these PyTorch captures graphs of their own.
TOKENS = [(2, 5), (3, 7), (2, 64), (5, 2), (4, 33), (2, 17), (7, 3), (3, 48), (6, 16), (2, 61)]
IMAGES = [(n, size) for n in (2, 3, 5) for size in (64, 96, 128)] + [(4, 160)]


def transformer(name: str) -> Made:
    """A small model of `transformers` with random weights, its inputs at a shape, and shapes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    small: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
                             "vocab_size": 100}
    match name:
        case "bert":
            model = transformers.BertModel(transformers.BertConfig(**small))
        case "gpt2":
            config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, use_cache=False)
            model = transformers.GPT2Model(config)
        case "vit":
            del small["vocab_size"]
            config = transformers.ViTConfig(**small, image_size=32, patch_size=8)
            model = transformers.ViTModel(config)
        case _:
            model = transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))

    class First(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, *args: Any) -> Any:
            return self.model(*args)[0]

    if name in ("bert", "gpt2"):
        return First().eval(), lambda n, length: (torch.randint(0, 100, (n, length)),), TOKENS
    if name == "vit":
        return First().eval(), lambda n, size: (torch.randn(n, 3, 32, 32),), [(n, 32) for n in range(2, 12)]
    return First().eval(), lambda n, size: (torch.randn(n, 3, size, size),), IMAGES


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "resnet"])
def test_a_backend_of_torch(name: str) -> None:
    import torch

    module, inputs, shapes = transformer(name)
    compiles = []

    def counted(graph: Any, example_inputs: Any) -> Any:
        compiles.append(graph)
        return backend(graph, example_inputs)

    compiled = torch.compile(module, backend=counted, dynamic=True)
    for shape in shapes:
        given = inputs(*shape)
        near(compiled(*given), module(*given))
    assert len(compiles) == 1


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "resnet"])
def test_a_module_is_a_model(name: str) -> None:
    module, inputs, shapes = transformer(name)
    executable = tsc.compile(module, example_args=inputs(*shapes[0]))
    for shape in shapes:
        given = inputs(*shape)
        found = executable.run(None, {spec.name: value for spec, value in zip(executable.inputs, given, strict=True)})
        near(found[0], module(*given))


def test_numbers_that_are_no_sizes() -> None:
    """A float of a module is another graph's when it is another; sizes and slices of buffers are not."""
    import torch

    class Scaled(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.5
            self.norm = torch.nn.BatchNorm1d(4).eval()
            self.register_buffer("places", torch.arange(64.0))

        def forward(self, x: Any) -> Any:
            return (self.norm(x) * self.scale + self.places[:x.shape[2]], x.reshape(x.shape[0] * x.shape[2], -1).sum(1))

    module = Scaled().eval()
    compiled = torch.compile(module, backend=backend, dynamic=True)
    for scale in (2.5, 2.5, 0.5, 3.0, 2.5):
        module.scale = scale
        for shape in ((2, 4, 5), (3, 4, 9)):
            x = torch.randn(*shape)
            for found, expected in zip(compiled(x), module(x), strict=True):
                near(found, expected)


def test_an_input_called_as_buffers_are_is_fed() -> None:
    import torch

    class Adding(torch.nn.Module):  # type: ignore[misc]
        def forward(self, kv_buffers_x: Any) -> Any:
            return kv_buffers_x + 1

    compiled = torch.compile(Adding(), backend=backend, dynamic=True)
    for value in (1.0, 2.0):
        near(compiled(torch.full((3, 4), value)), torch.full((3, 4), value + 1))


def test_sizes_and_constants_are_returned_in_their_places() -> None:
    import torch

    class Sized(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 2, None, x.shape[0], x.reshape(-1).sum(), 3

    compiled = torch.compile(Sized(), backend=backend, dynamic=True)
    for shape in ((2, 5), (4, 3)):
        x = torch.randn(*shape)
        double, none, rows, total, three = compiled(x)
        near(double, x * 2)
        near(total, x.sum())
        assert (none, rows, three) == (None, shape[0], 3) and isinstance(rows, int)


def test_nothing_that_is_lost_is_silent() -> None:
    """Gradients, and what is written into buffers and inputs."""
    import torch

    class Counting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    class Filling(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x * 2

    for module in (Counting(), Filling()):
        with pytest.raises(ModelError, match="writes into"):
            tsc.compile(module, example_args=(torch.ones(3),))
        with pytest.raises(Exception, match="writes into"):
            torch.compile(module, backend=backend, dynamic=True)(torch.ones(3))
    linear = torch.nn.Linear(3, 2)
    with torch.enable_grad(), pytest.raises(Exception, match="gives no gradients"):
        torch.compile(linear, backend=backend, dynamic=True)(torch.ones(4, 3))
    near(torch.compile(linear, backend=backend, dynamic=True)(torch.ones(4, 3)), linear(torch.ones(4, 3)))


def test_what_is_wrong_is_said() -> None:
    import torch

    class Wild(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.from_numpy(np.sort(x.numpy()))

    linear = torch.nn.Linear(3, 2)
    with pytest.raises(InputError, match="needs example_args"):
        tsc.compile(linear)
    with pytest.raises(ModelError, match="PyTorch cannot export the module"):
        tsc.compile(Wild(), example_args=(torch.ones(3),))
    assert linear.training and is_module(linear) and not is_module("linear") and not is_module(None)
    graph = torch.fx.symbolic_trace(linear)
    with pytest.raises(LaunchError, match="on 'meta'"):
        backend(graph, [torch.ones(2, 3, device="meta")])


def test_it_is_found_by_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"tsc": "tsc.torch_backend:backend"}
