"""Selection on this CPU, as in section 7.3 of the paper: dense layers at random lengths, beside the pool's best at each.

    python3 dev.py bench selection [--configs N] [--lengths N] [--batch N] [--layer 1024x3072 ..] [--records records.jsonl]

Each layer is tuned over lengths 1 to 512 (`--configs` of them measured at the sizes that `tsc tune` takes), which makes a pool.
All Variants of the pool are then measured, interleaved, at random lengths that nobody tuned for. Printed is the speed of the
one that the model picks as a share of the fastest one's: the mean, the least, and that of the default config.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.minilm import cpu_name
from tsc.config import Options
from tsc.kernels import workshop
from tsc.plan.kernel import Kernel
from tsc.runtime.cost import Rates
from tsc.runtime.select import least
from tsc.tune.child import measured
from tsc.tune.measure import Trial
from tsc.tune.pool import pool_of
from tsc.tune.records import read
from tsc.tuning import Effort, groups_of, tune
from tsc.tuning_group import built

#: Depths and widths: queries, keys and values, and the second half of the MLP, of BERT-large.
LAYERS = ("1024x3072", "4096x1024")
VARIANTS = 6


def layer(depth: int, width: int) -> onnx.ModelProto:
    """y = x @ w, over x: [batch, length, depth]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", size])
            for name, size in (("x", depth), ("y", width)))
    weights = np.random.default_rng(0).standard_normal((depth, width)).astype(np.float32)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "layer", [x], [y],
                              [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(kernel: Kernel, rates: list[Rates], sizes: dict[str, int]) -> list[float]:
    """What each Variant is expected to take on one core."""
    found = []
    for (_, variant, does), rate in zip(kernel.made(), rates, strict=True):
        work = {work.kind: work.count.evaluate(sizes) for work in does}
        found.append(sum(rate.terms(variant.calls[0].blocks.evaluate(sizes), work, 1).values()))
    return found


def measure(depth: int, width: int, batch: int, configs: int, lengths: int, records: Path, seed: int) -> None:
    begin = time.perf_counter()
    shop = workshop("cpu", Options(variants=VARIANTS))
    model, dims = layer(depth, width), {"batch": batch, "length": (1, 512)}
    (group,), _ = groups_of(model, dims, shop)
    drawn = [{"length": length} for length in Random(seed).sample(range(1, 513), lengths)]
    (untuned,), _ = groups_of(model, dims, shop, traffic=drawn)
    sizes = list(untuned.sizes)
    tune([group], shop, records, Effort(configs, search="random", seed=seed))
    own = [record for record in read(records) if record.group == group.order.group]
    pool = pool_of(own, VARIANTS)
    default = own[0].config
    kernel, binary, _ = built(group.order, list(dict.fromkeys([*pool, default])), shop)
    chosen = list(kernel.configs)
    rates = [pool.get(config, Rates(1 << 62)) for config in chosen]  # nobody picks what is not in the pool
    trial = Trial(group.order.program, kernel, binary, shop.device.spec.name, group.order.constants)
    tuning = time.perf_counter() - begin
    seconds = measured(trial, group.sizes[:1], sizes, enough=math.inf).seconds
    best = [min(seconds[k, n] for k, config in enumerate(chosen) if config in pool) for n in range(len(sizes))]
    picks = [least(expected(kernel, rates, at)) for at in sizes]
    shares = [best[n] / seconds[pick, n] for n, pick in enumerate(picks)]
    own_shares = [best[n] / seconds[chosen.index(default), n] for n in range(len(sizes))]
    print(f"({batch} L, {depth}) x ({depth}, {width}): {len({r.config for r in own})} configs measured, {len(pool)} in the "
          f"pool, {len(set(picks))} of them picked; at {lengths} lengths {np.mean(shares):.3f} of the best on average, "
          f"{min(shares):.3f} at worst, at {sizes[int(np.argmin(shares))]}; "
          f"the default config {np.mean(own_shares):.3f} and {min(own_shares):.3f} "
          f"({tuning:.0f} s of tuning)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", nargs="+", default=LAYERS, metavar="DEPTHxWIDTH")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--configs", type=int, default=32)
    parser.add_argument("--lengths", type=int, default=62)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path)
    asked = parser.parse_args()
    print(f"{cpu_name()}, one thread")
    with tempfile.TemporaryDirectory() as folder:
        for text in asked.layer:
            depth, width = map(int, text.split("x"))
            measure(depth, width, asked.batch, asked.configs, asked.lengths, asked.records or Path(folder) / "records.jsonl",
                    asked.seed)


if __name__ == "__main__":
    main()
