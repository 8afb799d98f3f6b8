"""What notebooks show: self-contained, escaped, bounded, and true to the plan."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tsc
from tsc.draw import MOST_BOXES, Box, chart
from tsc.graph.onnx.importer import import_onnx

EVIL = "</svg><script>alert('x' + \"y\")</script>&amp;"


def chain(length: int, name: str = "n") -> onnx.ModelProto:
    """relu, tanh, relu, ... of x [batch, 4], `length` nodes, with each node's name made of `name`."""
    nodes = [helper.make_node("Relu" if k % 2 else "Tanh", [f"v{k}"], [f"v{k + 1}"], f"{name}{k}") for k in range(length)]
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info(f"v{length}", TensorProto.FLOAT, ["batch", 4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def parsed(html: str) -> ElementTree.Element:
    """`html`, which must be well formed, without scripts, handlers, links or anything fetched."""
    root = ElementTree.fromstring(html)
    assert {e.tag for e in root.iter()} <= {"div", "b", "table", "tr", "th", "td", "svg", "g", "title", "rect", "text", "path"}
    for element in root.iter():
        assert not [a for a in element.attrib if a.startswith("on") or a in ("href", "src")]
    assert not re.search(r"https?:|url\(|@import|javascript:", html)
    return root


def titles(root: ElementTree.Element) -> list[str]:
    return [(e.text or "").split("\n")[0] for e in root.iter("title")]


@pytest.fixture(scope="module")
def executable() -> tsc.runtime.executable.Executable:
    """Two kernels: a softmax over a matmul's result, which is an output too."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "dense"), helper.make_node("Relu", ["a"], ["r"], "squash"),
             helper.make_node("Softmax", ["r"], ["y"], "soft")]
    graph = helper.make_graph(
        nodes, "two", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("y", "r")],
        [onnx.numpy_helper.from_array(np.ones((5, 4), np.float32), "w")])
    return tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
                       dims={"batch": (1, 8)})


def test_an_executable(executable: tsc.runtime.executable.Executable) -> None:
    html = executable._repr_html_()
    root = parsed(html)
    text = " ".join(t or "" for t in root.itertext())
    launches = executable.stats["launches"]
    assert [t.split(" ")[0] for t in titles(root)] == ["input", *map(str, range(launches)), "output", "output"]
    for part in ("float32[batch, 5]", "1..8", f"peak {executable.peak_bytes()} bytes", f"{launches} launches", "node dense",
                 "with squash", "1 weights", "sizes batch"):
        assert part in text, part
    assert len(list(root.iter("path"))) >= launches + 2  # x -> dense -> softmax -> y, and dense -> r


def test_a_graph() -> None:
    graph, _ = import_onnx(chain(3))
    root = parsed(graph._repr_html_())
    assert titles(root) == ["input v0", "Tanh n0", "Relu n1", "Tanh n2", "output v3"]
    assert len(list(root.iter("path"))) == 4


@pytest.mark.parametrize("length", [200, 1000])
def test_big_graphs_are_capped_with_a_note(length: int) -> None:
    graph, _ = import_onnx(chain(length, "a_rather_long_name_of_a_node_in_a_rather_deep_module/" * 3))
    html = graph._repr_html_()
    assert len(titles(parsed(html))) == MOST_BOXES and f"and {length + 2 - MOST_BOXES} more" in html and len(html) < 100_000


def test_names_are_escaped() -> None:
    for html in (tsc.compile(chain(2, EVIL))._repr_html_(), import_onnx(chain(2, EVIL))[0]._repr_html_()):
        root = parsed(html)
        assert "<script" not in html and any(EVIL in (e.text or "") for e in root.iter("title"))


def test_edges_go_forward_once_and_far_ones_are_stubs() -> None:
    boxes = [Box(f"b{k}") for k in range(30)]
    drawn = chart(boxes, [(0, 1), (0, 1), (1, 3), (0, 25), (4, 2)], "boxes")
    paths = [e.attrib["d"] for e in parsed(f"<div>{drawn}</div>").iter("path")]
    assert len(paths) == 3 and "C" in paths[1] and paths[2].count("M") == 2
