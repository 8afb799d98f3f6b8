"""RNN, GRU and LSTM beside ONNX Runtime at any length and batch, and the standard's own cases with their dims as they are and
symbolic. Of what the standard's text leaves open (input_forget) ONNX Runtime decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as standard
from onnx.backend.test.case.node import gru, lstm, rnn

import tsc

HIDDEN, WIDTH = 5, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: Activations of one direction, with what they are given.
OTHERS: Mapping[str, tuple[list[str], list[float], list[float]]] = {
    "RNN": (["LeakyRelu"], [0.1], []), "GRU": (["HardSigmoid", "Softsign"], [0.3], [0.4]),
    "LSTM": (["Sigmoid", "ScaledTanh", "Affine"], [1.2, 0.7], [0.8, 0.1])}
SHAPES = ((1, 1), (7, 1), (4, 3), (17, 5))


def model(op: str, direction: str, inputs: Sequence[str], **attributes: Any) -> onnx.ModelProto:
    """A layer of constant weights over a fed `x` [T, N, 3], with the optional `inputs` that are named."""
    rng, count, gates = np.random.default_rng(len(op) + len(direction)), 1 + (direction == "bidirectional"), GATES[op]
    constants = {"w": rng.standard_normal((count, gates * HIDDEN, WIDTH)) / 2,
                 "r": rng.standard_normal((count, gates * HIDDEN, HIDDEN)) / 2,
                 "b": rng.standard_normal((count, 2 * gates * HIDDEN)), "p": rng.standard_normal((count, 3 * HIDDEN))}
    names = ["x", "w", "r", *(name if name in inputs else "" for name in ("b", "lengths", "h0", "c0", "p"))]
    while not names[-1]:
        names.pop()
    outputs = ["y", "h", "c"][:2 + (op == "LSTM")]
    node = helper.make_node(op, names, outputs, hidden_size=HIDDEN, direction=direction, **attributes)
    fed = {"x": ("T", "N", WIDTH), "lengths": ("N",), "h0": (count, "N", HIDDEN), "c0": (count, "N", HIDDEN)}
    infos = [helper.make_tensor_value_info(n, TensorProto.INT32 if n == "lengths" else TensorProto.FLOAT, fed[n])
             for n in names if n in fed]
    weights = [numpy_helper.from_array(constants[n].astype(np.float32), n) for n in names if n in constants]
    graph = helper.make_graph(
        [node], "layer", infos, [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def others(op: str, directions: int) -> dict[str, Any]:
    names, alphas, betas = OTHERS[op]
    found = {"activations": names * directions, "activation_alpha": alphas * directions}
    return found | ({"activation_beta": betas * directions} if betas else {})


ALL = ("b", "lengths", "h0", "c0")
CASES: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "rnn": ("RNN", "forward", (), {}),
    "rnn, all of it, in reverse": ("RNN", "reverse", ALL[:3], {"clip": 0.5}),
    "rnn, both ways": ("RNN", "bidirectional", ("b", "lengths"), others("RNN", 2)),
    "gru": ("GRU", "forward", (), {}),
    "gru, all of it, in reverse": ("GRU", "reverse", ALL[:3], {"clip": 0.5}),
    "gru, reset after": ("GRU", "forward", ("b", "h0"), {"linear_before_reset": 1}),
    "gru, reset after, both ways": ("GRU", "bidirectional", ("b", "lengths"), {"linear_before_reset": 1, **others("GRU", 2)}),
    "lstm": ("LSTM", "forward", (), {}),
    "lstm, all of it, in reverse": ("LSTM", "reverse", ALL, {"clip": 0.5}),
    "lstm, peepholes, both ways": ("LSTM", "bidirectional", (*ALL, "p"), {}),
    "lstm, coupled": ("LSTM", "forward", ("b",), {"input_forget": 1}),
    "lstm, other activations": ("LSTM", "bidirectional", ("b", "h0", "c0"), others("LSTM", 2)),
}
#: What others, or the standard's cases below, have, too, together with something else.
REPEATED = {"rnn", "gru", "lstm", "gru, reset after", "rnn, both ways", "lstm, other activations", "lstm, peepholes, both ways"}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ()) for name in CASES])
def test_a_layer_at_any_length_and_batch(name: str) -> None:
    op, direction, inputs, attributes = CASES[name]
    made = model(op, direction, inputs, **attributes)
    session, executable = onnxruntime.InferenceSession(made.SerializeToString()), tsc.compile(made)
    rng = np.random.default_rng(0)
    for steps, rows in SHAPES:
        shapes = {i.name: [{"T": steps, "N": rows}.get(d, d) for d in i.shape] for i in session.get_inputs()}
        feeds = {n: rng.integers(1, steps + 1, s, np.int32) if n == "lengths" else rng.standard_normal(s).astype(np.float32)
                 for n, s in shapes.items()}
        for found, wanted in zip(executable.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{steps} steps of {rows}")
    assert executable.stats["compiles"] == 1


def test_a_row_without_steps_keeps_its_initial_state() -> None:
    executable = tsc.compile(model("RNN", "forward", ("b", "lengths", "h0")))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((4, 3, WIDTH)).astype(np.float32), "lengths": np.array([0, 4, 0], np.int32),
             "h0": rng.standard_normal((1, 3, HIDDEN)).astype(np.float32)}
    every, last = executable.run(None, feeds)
    np.testing.assert_array_equal(last[0, [0, 2]], feeds["h0"][0, [0, 2]])
    assert not every[:, 0, [0, 2]].any() and every[:, 0, 1].any()


@pytest.mark.parametrize(("change", "reason"), [
    ({"direction": "sideways"}, "has the direction 'sideways', expected one of forward, reverse, bidirectional"),
    ({"activations": ["Tanh", "Sin", "Tanh"]}, "has the activation 'Sin', expected one of Relu"),
    ({"activations": ["Tanh"]}, "has 1 activations, expected 3"),
    ({"hidden_size": 7}, "dim . of input"),
])
def test_what_fits_no_layer_is_refused(change: dict[str, Any], reason: str) -> None:
    made = model("LSTM", "forward", ())
    node = made.graph.node[0]
    kept = [a for a in node.attribute if a.name not in change]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in change.items())])
    with pytest.raises(tsc.TscError, match=reason):
        tsc.compile(made)


#: A module's cases are made when it is imported; the loader of the suite would import all of them.
STANDARD = [case for case in standard._NodeTestCases
            if case.name.startswith(("test_rnn", "test_simple_rnn", "test_gru", "test_lstm"))]
#: What the layers above lack: a batch that comes first; and lengths that the standard's own evaluator goes by.
ALONE = {"test_simple_rnn_batchwise", "test_lstm_batchwise", "test_gru_seq_length", "test_lstm_with_peepholes"}


@pytest.mark.parametrize(("case", "symbolic"), [
    pytest.param(case, symbolic, id=f"{case.name}-{'symbolic' if symbolic else 'static'}",
                 marks=() if symbolic and case.name in ALONE else pytest.mark.slow)
    for case in STANDARD for symbolic in (False, True)])
def test_the_standards_own_cases(case: Any, symbolic: bool) -> None:
    made = onnx.ModelProto.FromString(case.model.SerializeToString())
    if symbolic:  # of what is fed, but for weights: steps and batch
        batch_first = any(a.name == "layout" and a.i for a in made.graph.node[0].attribute)
        for k, name in enumerate(("rows", "steps") if batch_first else ("steps", "rows")):
            made.graph.input[0].type.tensor_type.shape.dim[k].dim_param = name
        for value in made.graph.output:
            value.type.tensor_type.ClearField("shape")
    executable = tsc.compile(made)
    for inputs, outputs in case.data_sets:
        feeds = {i.name: np.asarray(a) for i, a in zip(made.graph.input, inputs)}
        for found, wanted in zip(executable.run(None, feeds), outputs, strict=True):
            np.testing.assert_allclose(found, np.asarray(wanted), rtol=case.rtol, atol=case.atol)


def test_all_of_the_standards_cases_are_there() -> None:
    assert len(STANDARD) == 18 and {case.name for case in STANDARD} > ALONE and (rnn.RNN, gru.GRU, lstm.LSTM)
