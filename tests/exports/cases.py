"""Models as exporters write them today, each with feeds of four shapes: made anew, with random weights, by what is installed.

`python3 -m pytest tests/exports -m slow` runs what can be made here; the others are skipped and say what they lack. The makers
are PyTorch's two exporters, `transformers`, ONNX Runtime's quantiser and optimiser, Paddle2ONNX and skl2onnx.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Export:
    """A model file, what it is fed, and how far from ONNX Runtime's an output may be, of its largest value. `dims` as in
    `tsc.compile`."""

    path: Path
    feeds: Sequence[Feeds]
    tolerance: float = 1e-4
    dims: Mapping[str, Any] | None = None


Maker = Callable[[Path], Export]


@dataclass(frozen=True)
class Case:
    """How to make an export, and the modules that this takes."""

    needs: tuple[str, ...]
    make: Maker


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Exporters say much."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _nets() -> ModuleType:
    return importlib.import_module("tests.exports.nets")


# -- PyTorch -----------------------------------------------------------------------------------------------------

#: Names of an input's symbolic axes.
Axes = Mapping[str, Mapping[int, str]]


def exported(module: Any, given: Feeds, axes: Axes, path: Path, outputs: Sequence[str], scripted: bool = False) -> Path:
    """A module by the exporter that traces (scripts, if that is asked), with symbolic axes."""
    import torch

    torch.manual_seed(0)
    module = module.eval()
    with quietly(), torch.no_grad():
        torch.onnx.export(
            torch.jit.script(module) if scripted else module, tuple(torch.from_numpy(x) for x in given.values()), str(path),
            input_names=list(given), output_names=list(outputs), dynamic_axes={**axes}, opset_version=17, dynamo=False)
    return path


def captured(module: Any, given: Feeds, axes: Axes, path: Path, outputs: Sequence[str]) -> Path:
    """A module by the exporter that captures its graph (torch.export), with symbolic axes."""
    import torch

    shapes = tuple({axis: torch.export.Dim.DYNAMIC for axis in axes.get(name, {})} for name in given)
    with quietly(), torch.no_grad():
        torch.onnx.export(
            module.eval(), tuple(torch.from_numpy(x) for x in given.values()), str(path), input_names=list(given),
            output_names=list(outputs), dynamic_shapes=shapes, opset_version=18, dynamo=True, verbose=False)
    return path


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Random numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def numbers(most: int, *shape: int) -> NDArray[np.int64]:
    """Random whole numbers from 0 on."""
    return np.random.default_rng([most, *shape]).integers(0, most, shape)


IMAGE: Axes = {"image": {0: "n", 2: "h", 3: "w"}}
IMAGES = ((1, 16, 16), (2, 16, 24), (3, 40, 8), (1, 64, 32))


def _images(module: Callable[[], Any], by: Callable[..., Path], outputs: Sequence[str]) -> Maker:
    def make(folder: Path) -> Export:
        feeds = [{"image": normal(n, 3, h, w)} for n, h, w in IMAGES]
        return Export(by(_seeded(module), feeds[1], IMAGE, folder / "net.onnx", outputs), feeds)
    return make


def _seeded(module: Callable[[], Any]) -> Any:
    """A module whose norms have seen something, so that they are no identities, and whose convolutions keep the scale of what
    they are given (He et al. 2015), so that what differs at the input differs at the output."""
    import torch

    torch.manual_seed(0)
    made = module()
    for part in made.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
    for name, buffer in made.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return made


def _diffusion(by: Callable[..., Path]) -> Maker:
    def make(folder: Path) -> Export:
        feeds = [{"latent": normal(n, 4, h, w), "step": numbers(1000, n), "context": normal(n, t, 12)}
                 for n, h, w, t in ((2, 8, 8, 7), (3, 16, 8, 5), (2, 4, 12, 20), (4, 8, 24, 2))]
        axes = {"latent": {0: "n", 2: "h", 3: "w"}, "step": {0: "n"}, "context": {0: "n", 1: "t"}}
        return Export(by(_seeded(_nets().DiffusionUNet), feeds[0], axes, folder / "net.onnx", ["noise"]), feeds)
    return make


def _tagger(layer: str) -> Maker:
    def make(folder: Path) -> Export:
        import torch

        feeds = [{"tokens": numbers(50, n, t)} for n, t in ((2, 7), (1, 1), (5, 3), (3, 30))]
        net = _seeded(lambda: _nets().Tagger(getattr(torch.nn, layer)))
        return Export(exported(net, feeds[0], {"tokens": {0: "n", 1: "t"}}, folder / "net.onnx", ["classes"]), feeds)
    return make


def _beam_search(folder: Path) -> Export:
    feeds = [{"tokens": numbers(20, n, 4, t), "totals": normal(n, 4), "steps": np.array(steps)}
             for n, t, steps in ((2, 3, 2), (1, 1, 5), (3, 2, 0), (2, 6, 1))]
    axes = {"tokens": {0: "n", 2: "t"}, "totals": {0: "n"}}
    path = exported(_seeded(_nets().BeamSearch), feeds[0], axes, folder / "net.onnx", ["found", "scores"], scripted=True)
    return Export(path, feeds)


def _detector(folder: Path) -> Export:
    """Yolo with the best boxes that do not overlap chosen in the graph, as exporters append it."""
    made = _images(_nets().Yolo, exported, ["found"])(folder)
    model = onnx.load(made.path)
    graph = model.graph
    lists = {"corner_ends": [4], "class_starts": [4], "class_ends": [1 << 40], "start": [0], "channels": [1], "limit": [20]}
    graph.initializer.extend(helper.make_tensor(k, TensorProto.INT64, [1], v) for k, v in lists.items())
    graph.initializer.extend(helper.make_tensor(k, TensorProto.FLOAT, [1], [v]) for k, v in (("overlap", 0.5), ("least", 0.5)))
    graph.node.extend([
        helper.make_node("Slice", ["found", "start", "corner_ends", "channels"], ["corners"]),
        helper.make_node("Transpose", ["corners"], ["boxes"], perm=[0, 2, 1]),
        helper.make_node("Slice", ["found", "class_starts", "class_ends", "channels"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "limit", "overlap", "least"], ["chosen"])])
    graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.INT64, [None, 3]))
    onnx.save(model, made.path)
    return made


# -- transformers ------------------------------------------------------------------------------------------------

def _language(folder: Path, model: str) -> Export:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    config = transformers.BertConfig(**sizes) if model == "bert" else transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=100, use_cache=False)
    config._attn_implementation = "eager"
    net = _seeded(lambda: {"bert": transformers.BertModel, "gpt2": transformers.GPT2Model}[model](config))
    feeds = [{"input_ids": numbers(100, n, t), "attention_mask": _mask(n, t)} for n, t in ((2, 8), (1, 1), (3, 21), (5, 4))]
    axes = {name: {0: "n", 1: "t"} for name in feeds[0]}

    class Plain(importlib.import_module("torch").nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.net(input_ids=input_ids, attention_mask=attention_mask, return_dict=True).last_hidden_state

    return Export(exported(Plain(), feeds[0], axes, folder / "net.onnx", ["states"]), feeds)


def _mask(n: int, t: int) -> NDArray[np.int64]:
    """Sequences of which the last has an end."""
    mask = np.ones((n, t), np.int64)
    mask[-1, t - t // 3:] = 0
    return mask


def _vision(name: str, config: Mapping[str, Any], output: str, sizes: Sequence[tuple[int, int, int]]) -> Maker:
    """A model of images alone, by its name in transformers."""
    def make(folder: Path) -> Export:
        import torch
        import transformers

        made = getattr(transformers, f"{name.removesuffix('Model')}Config")(**config)
        made._attn_implementation = "eager"
        net = _seeded(lambda: getattr(transformers, name)(made))

        class Plain(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, image: Any) -> Any:
                return getattr(self.net(pixel_values=image, return_dict=True), output)

        feeds = [{"image": normal(n, 3, h, w)} for n, h, w in sizes]
        axes: Axes = {"image": {0: "n"} if len({s[1:] for s in sizes}) == 1 else IMAGE["image"]}
        return Export(exported(Plain(), feeds[1], axes, folder / "net.onnx", ["made"]), feeds)
    return make


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
_vit = _vision("ViTModel", {**_SMALL, "intermediate_size": 64}, "last_hidden_state", [(n, 32, 32) for n in (1, 2, 3, 5)])
_sam = _vision("SamVisionModel", {**_SMALL, "image_size": 64, "output_channels": 16, "mlp_dim": 64, "window_size": 3,
                                  "global_attn_indexes": [1]}, "last_hidden_state", [(n, 64, 64) for n in (1, 2, 3, 5)])
#: The last images have few positions, of an odd number: sums and means of bytes are rounded from floats, so that where they lie
#: in the middle between two bytes it is the last bit that tells; in larger images one of them comes out otherwise, and spreads.
_mobile = _vision("MobileNetV2Model", {"depth_multiplier": 0.35, "image_size": 32}, "pooler_output",
                  [(1, 32, 32), (2, 96, 32), (3, 32, 96), (1, 160, 32)])


def _detr(folder: Path) -> Export:
    import torch
    import transformers

    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
                                         out_features=["stage4"])
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_queries=6, num_labels=4)
    config._attn_implementation = "eager"
    net = _seeded(lambda: transformers.DetrForObjectDetection(config))

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, image: Any, mask: Any) -> Any:
            made = self.net(pixel_values=image, pixel_mask=mask, return_dict=True)
            return made.logits, made.pred_boxes

    feeds = []
    for n, h, w in ((1, 64, 64), (2, 64, 96), (3, 96, 64), (1, 128, 160)):
        mask = np.ones((n, h, w), np.int64)
        mask[-1, :, w - w // 4:] = 0
        feeds.append({"image": normal(n, 3, h, w), "mask": mask})
    axes = {"image": {0: "n", 2: "h", 3: "w"}, "mask": {0: "n", 1: "h", 2: "w"}}
    return Export(exported(Plain(), feeds[1], axes, folder / "net.onnx", ["classes", "boxes"]), feeds)


# -- ONNX Runtime's tools ----------------------------------------------------------------------------------------

def _quantised(make: Maker, kind: str) -> Maker:
    """As ONNX Runtime's tools quantise it: `dynamic`, in `pairs` of nodes, or by `operators` on bytes. Weights have seven bits:
    with eight its products saturate where there is only AVX2."""
    def quantised(folder: Path) -> Export:
        from onnxruntime import quantization

        source, target = make(folder), folder / f"{kind}.onnx"
        prepared = folder / "prepared.onnx"

        class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self.feeds = iter(source.feeds)

            def get_next(self) -> Any:
                return next(self.feeds, None)

        with quietly():
            quantization.quant_pre_process(str(source.path), str(prepared), skip_symbolic_shape=True)
            if kind == "dynamic":
                quantization.quantize_dynamic(str(prepared), str(target), reduce_range=True)
            else:
                form = quantization.QuantFormat.QDQ if kind == "pairs" else quantization.QuantFormat.QOperator
                quantization.quantize_static(
                    str(prepared), str(target), Calibration(), quant_format=form, reduce_range=True,
                    activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8)
        return Export(target, source.feeds, 1e-4)
    return quantised


def _optimised(make: Maker, kind: str) -> Maker:
    """As ONNX Runtime's optimiser of transformers fuses it."""
    def optimised(folder: Path) -> Export:
        from onnxruntime.transformers import optimizer

        source, target = make(folder), folder / "optimised.onnx"
        with quietly():
            made = optimizer.optimize_model(str(source.path), model_type=kind, num_heads=4, hidden_size=32)
            made.save_model_to_file(str(target))
        return Export(target, source.feeds)
    return optimised


def _halves(make: Maker) -> Maker:
    """With weights and arithmetic in float16, inputs and outputs as they were."""
    def halves(folder: Path) -> Export:
        from onnxruntime.transformers import float16

        source, target = make(folder), folder / "halves.onnx"
        with quietly():
            onnx.save(float16.convert_float_to_float16(onnx.load(source.path), keep_io_types=True), target)
        return Export(target, source.feeds, 5e-3)
    return halves


# -- the onnx package's -----------------------------------------------------------------------------------------

def _light(name: str) -> Maker:
    """A classical net that the onnx package has without weights: these are random, and the batch is symbolic."""
    def make(folder: Path) -> Export:
        model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx")
        graph, rng = model.graph, np.random.default_rng(0)
        fixed = {t.name: t for t in graph.initializer}
        kept = []
        for node in graph.node:
            if node.op_type != "ConstantOfShape":
                kept.append(node)
                continue
            shape = numpy_helper.to_array(fixed[node.input[0]])
            scale = np.sqrt(2 / np.prod(shape[1:]))  # He's, so that what a layer makes is as large as what it reads
            weights = rng.normal(size=shape) * scale if len(shape) > 1 else rng.uniform(0.5, 1.5, shape)
            made = numpy_helper.from_array(weights.astype(np.float32), node.output[0])
            graph.initializer.append(made)
            fixed[made.name] = made
        for node in kept:
            if node.op_type == "Reshape" and node.input[1] in fixed and node.input[0] not in fixed:
                target = numpy_helper.to_array(fixed[node.input[1]]).copy()
                target[0] = 0  # the batch, which is 1 in the file
                fixed[node.input[1]].CopyFrom(numpy_helper.from_array(target, node.input[1]))
        del graph.node[:], graph.value_info[:]
        graph.node.extend(kept)
        image = next(i for i in graph.input if i.name not in fixed)
        for extent in (image.type.tensor_type.shape.dim[0], graph.output[0].type.tensor_type.shape.dim[0]):
            extent.dim_param = "n"
        onnx.save(model, folder / "net.onnx")
        return Export(folder / "net.onnx", [{image.name: normal(n, 3, 224, 224)} for n in (1, 2, 3, 5)])
    return make


#: The nets of the onnx package.
LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
         "zfnet512")


# -- others ------------------------------------------------------------------------------------------------------

def _paddle(folder: Path) -> Export:
    """A net whose sizes have no names of a user's, with a size that is computed, a Reshape and a product."""
    import paddle
    from paddle import nn

    class Net(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8)
            self.second, self.classes = nn.Conv2D(8, 16, 3, stride=2, padding=1), nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            made = nn.functional.relu(self.second(nn.functional.hardswish(self.norm(self.first(x)))))
            large = nn.functional.interpolate(made, size=paddle.shape(x)[2:], mode="bilinear")
            tokens = made.flatten(2).transpose([0, 2, 1])
            shares = nn.functional.softmax(paddle.matmul(tokens, tokens, transpose_y=True))
            return self.classes(paddle.matmul(shares, tokens).mean(1)), large

    paddle.seed(0)
    net = Net()
    net.eval()
    spec = paddle.static.InputSpec([None, 3, None, None], "float32", "image")
    with quietly():
        paddle.onnx.export(net, str(folder / "net"), input_spec=[spec], opset_version=13, optimize_tool="None")
    model = onnx.load(folder / "net.onnx")
    name = model.graph.input[0].name
    for extent in model.graph.input[0].type.tensor_type.shape.dim:  # older versions leave them without a name
        if extent.HasField("dim_param"):
            extent.Clear()
    onnx.save(model, folder / "net.onnx")
    return Export(folder / "net.onnx", [{name: normal(n, 3, h, w)} for n, h, w in IMAGES])


def _fitted(name: str) -> Maker:
    """A model of scikit-learn's."""
    def make(folder: Path) -> Export:
        import skl2onnx

        trained = importlib.import_module("tests.ops.trained")
        model, rows = trained.fitted(name)
        kind = skl2onnx.common.data_types.FloatTensorType([None, rows.shape[1]])
        with quietly():
            made = skl2onnx.convert_sklearn(model, initial_types=[("x", kind)], options={"zipmap": False} if hasattr(
                model, "predict_proba") else None, target_opset={"": 18, "ai.onnx.ml": 3})
        onnx.save(made, folder / "net.onnx")
        return Export(folder / "net.onnx", [{"x": rows[:n]} for n in (1, 2, 17, 200)])
    return make


def _bert(folder: Path) -> Export:
    return _language(folder, "bert")


def _gpt2(folder: Path) -> Export:
    return _language(folder, "gpt2")


_TORCH = ("torch",)
_HUGGING = ("torch", "transformers")
_TOOLS = (*_HUGGING, "onnxruntime.quantization")
CASES: dict[str, Case] = {
    "u-net, traced": Case(_TORCH, lambda f: _images(_nets().UNet, exported, ["mask"])(f)),
    "u-net, captured": Case((*_TORCH, "onnxscript"), lambda f: _images(_nets().UNet, captured, ["mask"])(f)),
    "diffusion u-net, traced": Case(_TORCH, _diffusion(exported)),
    "diffusion u-net, captured": Case((*_TORCH, "onnxscript"), _diffusion(captured)),
    "yolo, traced": Case(_TORCH, lambda f: _images(_nets().Yolo, exported, ["found"])(f)),
    "yolo, captured": Case((*_TORCH, "onnxscript"), lambda f: _images(_nets().Yolo, captured, ["found"])(f)),
    "detector that suppresses": Case(_TORCH, _detector),
    "gru tagger": Case(_TORCH, _tagger("GRU")),
    "lstm tagger": Case(_TORCH, _tagger("LSTM")),
    "beam search": Case(_TORCH, _beam_search),
    "sam's encoder": Case(_HUGGING, _sam),
    "detr": Case(_HUGGING, _detr),
    "vit": Case(_HUGGING, _vit),
    "mobilenet": Case(_HUGGING, _mobile),
    "bert": Case(_HUGGING, _bert),
    "gpt2": Case(_HUGGING, _gpt2),
    "bert, dynamic int8": Case(_TOOLS, _quantised(_bert, "dynamic")),
    "bert, pairs of quantisations": Case(_TOOLS, _quantised(_bert, "pairs")),
    "mobilenet, operators on bytes": Case(_TOOLS, _quantised(_mobile, "operators")),
    "bert, optimised": Case(_TOOLS, _optimised(_bert, "bert")),
    "gpt2, optimised": Case(_TOOLS, _optimised(_gpt2, "gpt2")),
    "bert in halves": Case(_TOOLS, _halves(_bert)),
    "vit in halves": Case(_TOOLS, _halves(_vit)),
    "paddle": Case(("paddle", "paddle2onnx"), _paddle),
    "scaler and regression": Case(("skl2onnx",), _fitted("two classes")),
    "line": Case(("skl2onnx",), _fitted("line")),
    "forest": Case(("skl2onnx",), _fitted("forest of three classes")),
    "boosted trees": Case(("skl2onnx",), _fitted("boosted")),
    **{f"light {name}": Case((), _light(name)) for name in LIGHT},
}
