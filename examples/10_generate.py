"""Text by a decoder that keeps keys and values: any batch, prompt and length by one compile, beside ONNX Runtime.

    python examples/10_generate.py [--batch 2] [--prompt 9] [--tokens 64] [--temperature 0.8 --top 40] [--threads 1]

Keys and values stand in two sets of buffers: a step reads one and writes the other by IO binding, without a copy. The same
lines drive both runtimes. The weights are random, so the tokens say nothing; their times do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from gpt import gpt
from numpy.typing import NDArray

#: From the logits of each sequence [batch, words] to its next token.
Choose = Callable[[NDArray[np.float32]], NDArray[np.int64]]


def chooser(temperature: float, top: int) -> Choose:
    """The likeliest token, or one of the `top` likeliest ones by its probability, drawn anew with the same numbers."""
    rng = np.random.default_rng(2)
    def choose(logits: NDArray[np.float32]) -> NDArray[np.int64]:
        if not temperature:
            return logits.argmax(-1)
        least = np.sort(logits, axis=-1)[:, [-top]]
        shares = np.exp((logits - logits.max(-1, keepdims=True)) / temperature) * (logits >= least)
        return np.array([rng.choice(len(row), p=row / row.sum()) for row in shares.astype(np.float64)])
    return choose


def generate(session: Any, prompt: NDArray[np.int64], count: int, choose: Choose) -> tuple[NDArray[np.int64], float]:
    """The prompt [batch, length] and so many tokens behind it, and the seconds that a step took behind the first."""
    (batch, length), words = prompt.shape, session.get_outputs()[0].shape[2]
    pasts, presents = session.get_inputs()[1:], session.get_outputs()[1:]
    heads, head = pasts[0].shape[1], pasts[0].shape[3]
    buffers = [[np.empty(batch * heads * (length + count) * head, np.float32) for _ in pasts] for _ in range(2)]
    binding, ids, fed, past, begun = session.io_binding(), prompt, prompt, 0, 0.0
    for step in range(count):
        logits = np.empty((batch, fed.shape[1], words), np.float32)
        total = past + fed.shape[1]
        binding.bind_input("input_ids", "cpu", 0, np.int64, fed.shape, fed.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        for given, made, read, written in zip(pasts, presents, buffers[step % 2], buffers[1 - step % 2]):
            binding.bind_input(given.name, "cpu", 0, np.float32, (batch, heads, past, head), read.ctypes.data)
            binding.bind_output(made.name, "cpu", 0, np.float32, (batch, heads, total, head), written.ctypes.data)
        session.run_with_iobinding(binding)
        fed = np.ascontiguousarray(choose(logits[:, -1])[:, None])
        ids, past, begun = np.concatenate([ids, fed], axis=1), total, begun or time.perf_counter()
    return ids, (time.perf_counter() - begun) / max(1, count - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 2), ("prompt", 9), ("tokens", 64), ("layers", 6), ("width", 384), ("words", 8192),
                          ("temperature", 0.0), ("top", 40), ("threads", 1)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    model = gpt(asked.layers, asked.width, asked.width // 32, asked.words, asked.prompt + asked.tokens).SerializeToString()
    prompt, found = np.random.default_rng(1).integers(0, asked.words, (asked.batch, asked.prompt)), {}
    for name in ("tsc", *(("onnxruntime",) if find_spec("onnxruntime") else ())):
        options = (runtime := import_module(name)).SessionOptions()
        options.intra_op_num_threads = asked.threads
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found[name] = [generate(session, prompt, asked.tokens, chooser(asked.temperature, asked.top)) for _ in range(3)]
        ids, seconds = min(found[name], key=lambda run: run[1])
        print(f"{name}: {1e3 * seconds:.2f} ms a step, {asked.batch / seconds:.0f} tokens a second; {ids[0, -5:].tolist()}")
    same = all((ids == found["tsc"][0][0]).all() for runs in found.values() for ids, _ in runs)
    print("all give the same tokens" if same else "tokens differ")


if __name__ == "__main__":
    main()
