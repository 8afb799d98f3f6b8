"""What stands around a drafted operator: nodes before and behind it, a value used twice, operands that are outputs as well."""

from __future__ import annotations

from random import Random

from onnx import defs, helper

from tests.fuzz.operators.case import Draft

#: Behind an operator; defined for all floats, so that what it gives needs no care.
_BEHIND = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid")


def surround(d: Draft, rng: Random) -> str:
    """Add something around the Draft's nodes, or nothing; what was done. It draws from `rng`, so that the Draft stays."""
    done = [text for share, change in ((0.12, _before), (0.15, _behind), (0.05, _passed)) if rng.random() < share
            and (text := change(d, rng))]
    return ", ".join(done)


def _before(d: Draft, rng: Random) -> str:
    """A fed operand is first moved about, or its magnitude taken."""
    fed = [o for o in d.operands if o.role == "feed" and o.dtype == "float32" and o.dims]
    if not fed:
        return ""
    chosen = rng.choice(fed)
    order = list(range(len(chosen.dims)))
    rng.shuffle(order)
    back = [order.index(k) for k in range(len(order))]
    steps = rng.choice(([("Abs", {})], [("Identity", {})], [("Transpose", {"perm": order}), ("Transpose", {"perm": back})]))
    made, name = [], chosen.name
    for k, (op, attributes) in enumerate(steps):
        made.append(helper.make_node(op, [name], [f"{chosen.name}_b{k}"], f"{op}_before_{k}", **attributes))
        name = f"{chosen.name}_b{k}"
    for node in d.nodes:
        for k, given in enumerate(node.input):
            if given == chosen.name:
                node.input[k] = name
    d.nodes[:0] = made
    return f"{steps[0][0]} before"


def _behind(d: Draft, rng: Random) -> str:
    """The first output goes on, perhaps meets itself again, and perhaps stays an output."""
    source = next((n for n in d.nodes if d.outputs[0] in n.output), None)
    if source is None or not _gives_floats(d, source.op_type, list(source.input)):
        return ""
    first, op = d.outputs[0], rng.choice(_BEHIND)
    d.nodes.append(helper.make_node(op, [first], ["behind"], f"{op}_behind"))
    last, text = "behind", f"{op} behind"
    if rng.random() < 0.5:
        d.nodes.append(helper.make_node("Add", rng.choice((["behind", first], [first, "behind"])), ["diamond"], "diamond"))
        last, text = "diamond", f"{text}, and both added"
    d.outputs = [last, *d.outputs[rng.random() < 0.6:]]
    return text


def _gives_floats(d: Draft, op: str, inputs: list[str]) -> bool:
    """Whether output 0 is known to be float32: it has the type of an input that is."""
    schema = defs.get_schema(op, d.opset, "")
    letter = schema.outputs[0].type_str
    last = len(schema.inputs) - 1
    return any(schema.inputs[min(k, last)].type_str == letter and d.dtypes.get(name.split("_b")[0]) == "float32"
               for k, name in enumerate(inputs))


def _passed(d: Draft, rng: Random) -> str:
    """An operand is an output too."""
    chosen = rng.choice(d.operands)
    if chosen.role == "node" or chosen.name in d.outputs:
        return ""
    d.outputs = [*d.outputs, chosen.name]
    return f"{'an input' if chosen.role == 'feed' else 'a constant'} passed on"
