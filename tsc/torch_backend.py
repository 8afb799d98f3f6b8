"""`torch.compile(module, backend="tsc", dynamic=True)`: graphs that PyTorch captures, compiled once for all sizes.

It is for inference: weights are those of the moment in which a graph was compiled, and no gradients come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tsc.errors import LaunchError
from tsc.from_torch import exported, find_torch
from tsc.pipeline import compile


def backend(graph: Any, example_inputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """What `torch.compile(module, backend="tsc", dynamic=True)` calls with a graph that it has captured: compiled once for all
    sizes, and once more for other values of numbers that are no sizes. Raises as `tsc.compile`, and LaunchError where gradients
    are wanted, and for tensors that are not on the CPU."""
    torch = find_torch()
    if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in example_inputs):
        raise LaunchError("backend 'tsc' gives no gradients, which this call wants; call it under torch.no_grad()")
    captured = _Captured(torch, graph, example_inputs)
    for number in captured.tensors:
        if (device := example_inputs[number].device).type != "cpu":
            raise LaunchError(f"backend 'tsc' computes on the CPU, but an input is on '{device}'; move the module and inputs")
    made: dict[tuple[Any, ...], tuple[Any, list[str]]] = {}

    def compiled(numbers: tuple[Any, ...]) -> tuple[Any, list[str]]:
        if numbers not in made:
            with torch._guards.tracing(None), torch._subclasses.fake_tensor.unset_fake_temporarily():
                model = exported(captured.with_numbers(numbers), captured.examples(), captured.shapes())
            made[numbers] = compile(model), [value.name for value in model.graph.input]
        return made[numbers]

    def run(*args: Any) -> list[Any]:
        executable, names = compiled(tuple(_plain(args[number]) for number in captured.numbers))
        given = {name: args[number].detach() for name, number in zip(names, captured.tensors, strict=True)}
        return captured.results(map(torch.from_numpy, executable.run(None, given)))

    compiled(tuple(_plain(example_inputs[number]) for number in captured.numbers))
    return run


def _plain(number: Any) -> Any:
    """The number that is given, also in a tensor, or with which a symbolic one was captured."""
    if isinstance(number, bool | int | float):
        return number
    return number.item() if hasattr(number, "item") else number.node.hint


def _is_number(node: Any, value: Any) -> bool:
    """Whether an input is a tensor of which nothing but its number is used: so numbers are captured that are no sizes."""
    return getattr(value, "shape", None) == () and all(user.target == "item" for user in node.users)


class _Captured:
    """A graph as torch.compile captures it: of its inputs `tensors` are fed, by number, weights are held, sizes are read off
    tensors, and `numbers` are what is left: they have the values of a call."""

    def __init__(self, torch: Any, graph: Any, example_inputs: Sequence[Any]) -> None:
        self._torch, self._graph, self._inputs = torch, graph, example_inputs
        self._holders = graph.graph.find_nodes(op="placeholder")
        self._sizes = [getattr(node.meta.get("example_value", value), "shape", ())  # symbolic, where the tensor's own are not
                       for node, value in zip(self._holders, example_inputs)]
        weights = {k for k, (node, value) in enumerate(zip(self._holders, example_inputs)) if self._is_weight(node, value)}
        self.tensors = [k for k, (node, value) in enumerate(zip(self._holders, example_inputs))
                        if isinstance(value, torch.Tensor) and k not in weights and not _is_number(node, value)]
        self._axes: dict[str, tuple[int, int]] = {}
        for k in self.tensors:
            for axis, size in enumerate(self._sizes[k]):
                if not isinstance(size, int):
                    self._axes.setdefault(str(size), (k, axis))
        self._weights, self._result = weights, graph.graph.output_node()
        self.numbers = [k for k, (node, value) in enumerate(zip(self._holders, example_inputs))
                        if _is_number(node, value) or not (isinstance(value, torch.Tensor) or str(value) in self._axes)]

    def _is_weight(self, node: Any, value: Any) -> bool:
        source = getattr(node, "_dynamo_source", None)  # where it was found, whatever it is called
        is_buffer = getattr(getattr(source, "base", None), "member", "") == "_buffers"
        return is_buffer or isinstance(value, self._torch.nn.Parameter)

    def examples(self) -> tuple[Any, ...]:
        """Tensors of the sizes that were captured."""
        return tuple(self._torch.zeros([_plain(size) for size in self._sizes[k]], dtype=self._inputs[k].dtype)
                     for k in self.tensors)

    def shapes(self) -> tuple[dict[int, Any], ...]:
        """Which of their axes may have other sizes."""
        dynamic = self._torch.export.Dim.AUTO
        return tuple({axis: dynamic for axis, size in enumerate(self._sizes[k]) if not isinstance(size, int)}
                     for k in self.tensors)

    def results(self, made: Iterator[Any]) -> list[Any]:
        """What a call returns, of what the module of the tensors makes: in their places constants, and sizes as numbers."""
        found = []
        for node in self._result.args[0]:
            value = next(made) if isinstance(node, self._torch.fx.Node) else node
            is_size = value is not node and not isinstance(node.meta.get("example_value"), self._torch.Tensor)
            found.append(value.item() if is_size else value)
        return found

    def with_numbers(self, numbers: Sequence[Any]) -> Any:
        """A module of the tensors alone."""
        fx = self._torch.fx
        made, copies = fx.GraphModule(self._graph, fx.Graph()), dict[Any, Any]()
        values = dict(zip(self.numbers, numbers))
        for k in self.tensors:
            copies[self._holders[k]] = made.graph.placeholder(self._holders[k].name)
        for k, node in enumerate(self._holders):
            if k in values:
                copies |= dict.fromkeys((node, *(user for user in node.users if user.target == "item")), values[k])
            elif k in self._weights:
                made.register_buffer(f"held_{k}", self._inputs[k].detach())
                copies[node] = made.graph.get_attr(f"held_{k}")
            elif node not in copies:
                tensor, axis = self._axes[str(self._inputs[k])]
                copies[node] = made.graph.call_method("size", (copies[self._holders[tensor]], axis))
        for node in self._graph.graph.nodes:
            if node is not self._result and node not in copies:
                args, named = (fx.map_arg(given, copies.__getitem__) for given in (node.args, node.kwargs))
                copies[node] = made.graph.create_node(node.op, node.target, args, named, node.name)
        made.graph.output(tuple(copies[node] for node in self._result.args[0] if isinstance(node, fx.Node)))
        made.recompile()
        return made
