"""Real MiniLM weights: right at random shapes against ONNX Runtime, for our decomposed graph and for torch's exporter."""

from __future__ import annotations

import io
import json
import math
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import tsc

minilm = pytest.importorskip("minilm", reason="needs the demo extras (safetensors, tokenizers)")

SHAPES = 25
HIDDEN_TOLERANCE, EMBEDDING_TOLERANCE = 1e-4, 1e-5


def random_feeds(rng: np.random.Generator, batch: int, length: int) -> dict[str, NDArray[np.int64]]:
    """Token ids with a ragged mask: every row keeps at least one token."""
    kept = rng.integers(1, length + 1, batch)
    kept[rng.integers(batch)] = length
    mask = (np.arange(length) < kept[:, None]).astype(np.int64)
    ids = rng.integers(0, 30522, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": rng.integers(0, 2, (batch, length))}


def random_shapes(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Batch 1 to 16 and length 1 to 256, the corners and sizes around tiles among them; log-uniform, so that most are small."""
    shapes = [(1, 1), (16, 1), (1, 256), (2, 97), (7, 31), (5, 65)]
    while len(shapes) < SHAPES:
        shapes.append((int(16 ** rng.uniform()), int(256 ** rng.uniform())))
    return shapes


def check(model: onnx.ModelProto) -> None:
    """One compile; hidden states and embeddings as ONNX Runtime's on the same file at every shape."""
    executable = tsc.compile(model)
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    for batch, length in random_shapes(rng):
        feeds = random_feeds(rng, batch, length)
        hidden, embedding = executable.run(None, feeds)
        want_hidden, want_embedding = reference.run(None, feeds)
        assert hidden.shape == (batch, length, 384) and embedding.shape == (batch, 384)
        np.testing.assert_allclose(hidden, want_hidden, rtol=0, atol=HIDDEN_TOLERANCE, err_msg=f"hidden at {batch, length}")
        np.testing.assert_allclose(embedding, want_embedding, rtol=0, atol=EMBEDDING_TOLERANCE, err_msg=f"at {batch, length}")
    assert executable.stats["compiles"] == 1


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return minilm.build()


def test_decomposed_graph_at_random_shapes(model: onnx.ModelProto) -> None:
    check(model)


def test_example_graph_is_bert(model: onnx.ModelProto) -> None:
    """The example's graph against BERT written down in NumPy float64 from the same weights."""
    from_graph = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = random_feeds(np.random.default_rng(3), 3, 11)
    hidden, embedding = from_graph.run(None, feeds)
    want_hidden, want_embedding = numpy_bert(feeds)
    np.testing.assert_allclose(hidden, want_hidden, atol=2e-5)
    np.testing.assert_allclose(embedding, want_embedding, atol=2e-6)


def test_similar_sentences_are_near() -> None:
    sentences = ["A man is eating food.", "Someone is having a meal.", "Stock prices fell sharply on Monday."]
    feeds = minilm.tokenize(minilm.load_tokenizer(), sentences)
    assert feeds["input_ids"].shape[1] > feeds["attention_mask"].sum(1).min() > 2
    (embedding,) = tsc.compile(minilm.build()).run(["sentence_embedding"], feeds)
    near, far = embedding[0] @ embedding[1], embedding[0] @ embedding[2]
    assert near > 0.5 > 0.3 > far


def test_torchscript_export_at_random_shapes() -> None:
    """The same weights through torch.onnx.export(dynamo=False)."""
    torch = pytest.importorskip("torch", reason="torch is not installed; the suite never installs it")
    check(torchscript_export(torch))


# -- BERT, twice more -------------------------------------------------------------------------------------------


def read_weights() -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    folder = minilm.model_folder()
    return json.loads((folder / "config.json").read_text()), minilm.load_file(folder / "model.safetensors")


def numpy_bert(feeds: dict[str, NDArray[np.int64]]) -> tuple[NDArray[Any], NDArray[Any]]:
    config, weights = read_weights()
    w = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in weights.items()}
    erf = np.vectorize(math.erf)

    def linear(x: NDArray[Any], name: str) -> NDArray[Any]:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config["layer_norm_eps"])
        return y * w[f"{name}.weight"] + w[f"{name}.bias"]

    ids, mask = feeds["input_ids"], feeds["attention_mask"].astype(np.float64)
    batch, length = ids.shape
    x = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:length]
         + w["embeddings.token_type_embeddings.weight"][feeds["token_type_ids"]])
    x = norm(x, "embeddings.LayerNorm")
    for index in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{index}"
        parts = [linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value")]
        heads = [part.reshape(batch, length, config["num_attention_heads"], -1).swapaxes(1, 2) for part in parts]
        scores = heads[0] @ heads[1].swapaxes(2, 3) / np.sqrt(heads[0].shape[-1])
        e = np.exp(scores - scores.max(-1, keepdims=True)) * mask[:, None, None, :]
        mixed = (e / e.sum(-1, keepdims=True) @ heads[2]).swapaxes(1, 2).reshape(batch, length, -1)
        x = norm(linear(mixed, f"{at}.attention.output.dense") + x, f"{at}.attention.output.LayerNorm")
        h = linear(x, f"{at}.intermediate.dense")
        x = norm(linear(h * (1 + erf(h / np.sqrt(2))) / 2, f"{at}.output.dense") + x, f"{at}.output.LayerNorm")
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return x, mean / np.linalg.norm(mean, axis=1, keepdims=True)


def torchscript_export(torch: Any) -> onnx.ModelProto:
    """MiniLM as a plain torch module (built by hand: transformers is not needed), through the TorchScript exporter."""
    config, weights = read_weights()
    nn, functional = torch.nn, torch.nn.functional
    width, heads = config["hidden_size"], config["num_attention_heads"]

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
            self.norm, self.norm2 = (nn.LayerNorm(width, eps=config["layer_norm_eps"]) for _ in range(2))
            self.wide = nn.Linear(width, config["intermediate_size"])
            self.narrow = nn.Linear(config["intermediate_size"], width)

        def split(self, x: Any) -> Any:
            return x.view(x.size(0), x.size(1), heads, width // heads).permute(0, 2, 1, 3)

        def forward(self, x: Any, mask: Any) -> Any:
            query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            scores = torch.matmul(query, key.transpose(-1, -2)) / (width // heads) ** 0.5 + mask
            mixed = torch.matmul(functional.softmax(scores, dim=-1), value).permute(0, 2, 1, 3).contiguous()
            x = self.norm(self.dense(mixed.view(mixed.size(0), mixed.size(1), width)) + x)
            return self.norm2(self.narrow(functional.gelu(self.wide(x))) + x)

    class Bert(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(config["vocab_size"], width)
            self.types = nn.Embedding(config["type_vocab_size"], width)
            self.places = nn.Embedding(config["max_position_embeddings"], width)
            self.norm = nn.LayerNorm(width, eps=config["layer_norm_eps"])
            self.layers = nn.ModuleList(Layer() for _ in range(config["num_hidden_layers"]))
            self.register_buffer("positions", torch.arange(config["max_position_embeddings"])[None])

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            places = self.places(self.positions[:, :input_ids.size(1)])
            x = self.norm(self.words(input_ids) + self.types(token_type_ids) + places)
            additive = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
            for layer in self.layers:
                x = layer(x, additive)
            weights = attention_mask.unsqueeze(-1).expand(x.size()).float()
            mean = torch.sum(x * weights, 1) / torch.clamp(weights.sum(1), min=1e-9)
            return x, functional.normalize(mean, p=2, dim=1)

    bert = Bert().eval()
    bert.load_state_dict({ours: torch.from_numpy(weights[theirs]) for ours, theirs in torch_names(bert.state_dict())})
    example = tuple(torch.from_numpy(value) for value in random_feeds(np.random.default_rng(0), 2, 9).values())
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            bert, example, buffer, dynamo=False, opset_version=17, input_names=list(minilm.INPUTS),
            output_names=list(minilm.OUTPUTS),
            dynamic_axes={**{name: {0: "batch", 1: "seq"} for name in (*minilm.INPUTS, minilm.OUTPUTS[0])},
                          minilm.OUTPUTS[1]: {0: "batch"}})
    return onnx.load_model_from_string(buffer.getvalue())


def torch_names(ours: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs (name in our torch module, name in the weight file)."""
    embeddings = {"words": "word_embeddings", "types": "token_type_embeddings", "places": "position_embeddings",
                  "norm": "LayerNorm"}
    parts = {"query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
             "dense": "attention.output.dense", "norm": "attention.output.LayerNorm", "wide": "intermediate.dense",
             "narrow": "output.dense", "norm2": "output.LayerNorm"}
    pairs = []
    for name in ours:
        match name.split("."):
            case ["positions"]:
                pairs.append((name, "embeddings.position_ids"))
            case ["layers", index, part, leaf]:
                pairs.append((name, f"encoder.layer.{index}.{parts[part]}.{leaf}"))
            case [part, leaf]:
                pairs.append((name, f"embeddings.{embeddings[part]}.{leaf}"))
    return pairs
