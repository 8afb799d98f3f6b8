"""What a search finds on this CPU, beside random configs: kernels of BERT-base and of resnet50, each over ranges of sizes.

    python3 dev.py bench covers [--kernel up ..] [--candidates N] [--random N] [--variants N] [--records FOLDER]

Each kernel is tuned twice, by TuRBO-m with at most `--candidates` configs and at random with `--random` of them, and a cover is
made from the records of each. Both covers and the default config are then measured in four more passes, interleaved: what a
size takes in one pass is that of the Variant that was fastest in the others. (If one pass said both, a cover of more Variants
would have more luck.) Printed is how many times as fast as the random one's the search's cover is in the geometric mean over
the sizes, in all passes and in each; the same for the default; and how long each search took. Needs the extra `tune`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.minilm import cpu_name
from tsc.config import Options
from tsc.kernels import workshop
from tsc.poly.tile import TileConfig
from tsc.sym import product
from tsc.tune.child import measured
from tsc.tune.measure import Trial
from tsc.tune.pool import pool_of
from tsc.tune.records import read
from tsc.tuning import Effort, groups_of, tune
from tsc.tuning_group import Group, built

TOKENS = {"batch": (1, 4), "length": (1, 256)}
IMAGES = {"N": (1, 2), "H": (14, 80), "W": (14, 80)}
HEADS, HEAD = 12, 64
#: In which covers are compared.
PASSES = 4


def dense(depth: int, width: int) -> onnx.ModelProto:
    """y = relu(x @ w + b), over x: [batch, length, depth]."""
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((depth, width), np.float32), "b": rng.standard_normal(width, np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]),
             helper.make_node("Relu", ["c"], ["y"])]
    return _model(nodes, {"x": ("batch", "length", depth)}, ("batch", "length", width), held)


def attention() -> onnx.ModelProto:
    """softmax(q k / 8) v, over heads."""
    ends = {name: ("batch", HEADS, "length", HEAD) for name in ("q", "v")} | {"k": ("batch", HEADS, HEAD, "length")}
    nodes = [helper.make_node("MatMul", ["q", "k"], ["s"]), helper.make_node("Mul", ["s", "scale"], ["t"]),
             helper.make_node("Softmax", ["t"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "v"], ["y"])]
    return _model(nodes, ends, ends["v"], {"scale": np.array(HEAD ** -0.5, np.float32)})


def _model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int | str, ...]], output: tuple[int | str, ...],
           held: dict[str, np.ndarray]) -> onnx.ModelProto:
    typed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in {**inputs, "y": output}.items()]
    graph = helper.make_graph(nodes, "layer", typed[:-1], typed[-1:], [numpy_helper.from_array(a, n) for n, a in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bottlenecks() -> onnx.ModelProto:
    """The second and third of resnet50's blocks: images of 256 channels, whose convolutions have 64."""
    rng, nodes, held = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, np.ndarray]()
    x = "x"
    for block in "ab":
        y = x
        for part, (out, depth, size) in enumerate(((64, 256, 1), (64, 64, 3), (256, 64, 1))):
            name, weight = f"{block}{part}", rng.standard_normal((out, depth, size, size)) / math.sqrt(depth * size * size)
            held[f"w{name}"] = weight.astype(np.float32)
            nodes.append(helper.make_node("Conv", [y, f"w{name}"], [f"c{name}"], pads=[size // 2] * 4))
            if part == 2:
                nodes.append(helper.make_node("Add", [f"c{name}", x], [f"s{name}"]))
            y = "y" if name == "b2" else f"r{name}"
            nodes.append(helper.make_node("Relu", [f"s{name}" if part == 2 else f"c{name}"], [y]))
        x = y
    ends = ("N", 256, "H", "W")
    return _model(nodes, {"x": ends}, ends, held)


#: A model, the ranges of its dims, and how many terms the kernel's first sum has.
KERNELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, tuple[int, int]], int]] = {
    "up": (lambda: dense(768, 3072), TOKENS, 768), "down": (lambda: dense(3072, 768), TOKENS, 3072),
    "attention": (attention, TOKENS, HEAD), "conv 3x3": (bottlenecks, IMAGES, 9 * 64), "conv 1x1": (bottlenecks, IMAGES, 256)}


def terms(group: Group) -> int:
    """Those of the first sum of a kernel."""
    sums = [compute.reduce_axes for compute in group.order.program.computes if compute.reduce_axes]
    return product(axis.extent for axis in sums[0]).as_int() or 0 if sums else 0


def compare(name: str, candidates: int, drawn: int, variants: int, folder: Path, seed: int) -> None:
    """Tune one of the KERNELS both ways, and measure what was found."""
    make, dims, summed = KERNELS[name]
    shop = workshop("cpu", Options(variants=variants))
    groups, _ = groups_of(make(), dims, shop, seed=seed)
    group, = (group for group in groups if terms(group) == summed)
    pools: dict[str, list[TileConfig]] = {}
    told = []
    for search, count in (("turbo", candidates), ("random", drawn)):
        records, begin = folder / f"{name}-{search}.jsonl", time.perf_counter()
        tune([group], shop, records, Effort(count, search=search, seed=seed))
        own = [record for record in read(records) if record.group == group.order.group]
        pools[search] = list(pool_of(own, variants))
        told.append(f"{search}: {len({r.config for r in own})} configs in {time.perf_counter() - begin:.0f} s, "
                    f"{len(pools[search])} in the cover")
        default = own[0].config
    kernel, binary, _ = built(group.order, list(dict.fromkeys([default, *pools["turbo"], *pools["random"]])), shop)
    configs = list(kernel.configs)
    trial = Trial(group.order.program, kernel, binary, shop.device.spec.name, group.order.constants)
    found = [measured(trial, group.sizes[:1], group.sizes, enough=math.inf).seconds for _ in range(PASSES)]
    logs = np.log([[[seconds[row, n] for n in range(len(group.sizes))] for row in range(len(configs))] for seconds in found])

    def means(chosen: list[TileConfig]) -> np.ndarray:
        """The mean logarithm over the sizes in each pass, each size with the config that was the fastest in the others."""
        own = logs[:, [configs.index(config) for config in chosen]]
        best = (own.sum(axis=0) - own).argmin(axis=1)
        return np.take_along_axis(own, best[:, None], axis=1)[:, 0].mean(axis=1)

    gains = np.exp(means(pools["random"]) - means(pools["turbo"]))
    print(f"{name}: the search's cover is {gains.prod() ** (1 / PASSES):.3f} times as fast as the random one's at "
          f"{len(group.sizes)} sizes ({', '.join(f'{gain:.3f}' for gain in gains)}), the default config "
          f"{math.exp(float((means(pools['random']) - means([default])).mean())):.3f} ({'; '.join(told)})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--random", type=int, default=500)
    parser.add_argument("--variants", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, help="A folder in which measurements are kept, so that a run can be resumed.")
    asked = parser.parse_args()
    print(f"{cpu_name()}, one thread")
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.kernel:
            compare(name, asked.candidates, asked.random, asked.variants, asked.records or Path(folder), asked.seed)


if __name__ == "__main__":
    main()
