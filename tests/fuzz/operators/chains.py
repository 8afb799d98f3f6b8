"""Short chains: two to five nodes over one tensor, with joins of what an earlier node gave, and all random cases by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from onnx import defs

from tests.fuzz.operators import domains, elementwise, layers, movement, placing, quantised, sequences, states, trips
from tests.fuzz.operators.around import surround
from tests.fuzz.operators.broken import break_draft
from tests.fuzz.operators.case import LARGE, NEWEST, SMALL, Case, Draft, Scale
from tests.fuzz.operators.elementwise import Recipe, stretched
from tests.fuzz.operators.values import fixed, places, within

RECIPES: dict[str, Recipe] = {
    **elementwise.RECIPES, **movement.RECIPES, **layers.RECIPES, **quantised.RECIPES, **sequences.RECIPES,
    **placing.RECIPES, **states.RECIPES, **placing.COUNTED, "Det": layers.det,
    **sequences.FORMULAS, **trips.RECIPES, **domains.RECIPES}
#: How often an operator is drawn, where not once.
_WEIGHTS = {"MatMul": 4, "Gemm": 4, "Conv": 8, "Reshape": 3, "Slice": 4, "Concat": 3, "Pad": 3, "Gather": 3, "Softmax": 2,
            "LayerNormalization": 2, "Resize": 3, "MaxPool": 3, "AveragePool": 3, "Cast": 2, "Div": 2, "Where": 2, "Split": 2,
            "GatherND": 2, "ArgMax": 2, "CumSum": 2, "Einsum": 3, "ConvTranspose": 4}
#: Recipes that came later, and when: a case that was found by its number is drawn from those of its time.
_SINCE = {"RNN": 1, "GRU": 1, "LSTM": 1, "If": 2, **dict.fromkeys((
    "Einsum", "ConvTranspose", "LpNormalization", "LRN", "LpPool", "GlobalLpPool", "Hardmax", *elementwise.ANGLES), 3),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"), 4),
    **dict.fromkeys(("CumProd", "GridSample", "Col2Im", *quantised.RECIPES, *sequences.RECIPES), 5),
    **dict.fromkeys((*placing.RECIPES, *states.RECIPES), 6), **dict.fromkeys(placing.COUNTED, 7),
    **dict.fromkeys(("Det", "MelWeightMatrix", *trips.RECIPES), 8), **dict.fromkeys(domains.RECIPES, 12)}
#: With 9 products between quantisations came (`quantised.pairs`), with 11 of sums and differences of bytes (`differences`).
NOW = 12
#: A step of a chain: from the value it reads to what it gives.
Step = Callable[[Draft, str], str]

_WHOLE = ("Neg", "Abs", "Identity", "Sign")
_SMOOTH = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Exp", "Erf", "Softplus", "Sqrt", "Sin", "Floor", "Identity", "Softsign")


def _give(d: Draft, x: str, name: str, dims: tuple[str | int, ...] | None = None) -> str:
    """`name`, which has the type of `x`, and its dims where no others are said."""
    d.dims[name], d.dtypes[name] = d.dims[x] if dims is None else dims, d.dtypes[x]
    return name


def _operand(d: Draft, x: str, dims: Sequence[str | int], most: int = 2) -> str:
    """A small operand of the type of `x`."""
    return d.operand(dims, d.dtypes[x], within(d.dtypes[x], -most, most))


def _is_whole(d: Draft, x: str) -> bool:
    return not d.dtypes[x].startswith("float")


def _unary(d: Draft, x: str) -> str:
    return _give(d, x, d.node(d.rng.choice(_WHOLE if _is_whole(d, x) else _SMOOTH), [x])[0])


def _binary(d: Draft, x: str) -> str:
    other = _operand(d, x, stretched(d, d.dims[x]))
    pair = [x, other] if d.chance(0.6) else [other, x]
    among = ("Add", "Sub", "Mul", "Max", "Min") if _is_whole(d, x) else ("Add", "Sub", "Mul", "Div", "Max", "Min")
    return _give(d, x, d.node(d.rng.choice(among), pair)[0])


def _join(d: Draft, x: str) -> str:
    """With an earlier value of the same shape: a residual."""
    same = [n for n in d.dims if d.dims[n] == d.dims[x] and d.dtypes[n] == d.dtypes[x] and n != x] or [x]
    return _give(d, x, d.node(d.rng.choice(("Add", "Add", "Mul", "Sub")), [x, d.rng.choice(same)])[0])


def _transposed(d: Draft, x: str) -> str:
    order = list(range(len(d.dims[x])))
    d.rng.shuffle(order)
    return _give(d, x, d.node("Transpose", [x], perm=order)[0], tuple(d.dims[x][k] for k in order))


def _projected(d: Draft, x: str) -> str:
    """A weight from the right; its columns may be one, and it is mostly constant."""
    depth, dtype = d.dims[x][-1], d.dtypes[x]
    n = d.rng.choice((1, 4, 17, 64, d.size(1, 65)))
    weight = d.operand((depth, n), dtype, within(dtype, -1, 2 if _is_whole(d, x) else 1),
                       role=d.rng.choice(("initializer", "initializer", "node", "feed")))
    return _give(d, x, d.node("MatMul", [x, weight])[0], (*d.dims[x][:-1], n))


def _softmax(d: Draft, x: str) -> str:
    if _is_whole(d, x):
        return _unary(d, x)
    return _give(d, x, d.node("Softmax", [x], axis=len(d.dims[x]) - 1)[0])


def _normalised(d: Draft, x: str) -> str:
    if d.opset < 17 or _is_whole(d, x):
        return _softmax(d, x)
    own = [_operand(d, x, d.dims[x][-1:]) for _ in range(2)]
    return _give(d, x, d.node("LayerNormalization", [x, *own])[0])


def _centred(d: Draft, x: str) -> str:
    """Less a reduction over some axis."""
    axis = d.rng.randrange(len(d.dims[x]))
    op = d.rng.choice(("ReduceMax", "ReduceSum" if _is_whole(d, x) else "ReduceMean", "ReduceMin"))
    given = d.opset < (13 if op == "ReduceSum" else 18)
    inputs = [x] if given else [x, d.constant(fixed([axis]), (1,))]
    top, = d.node(op, inputs, axes=[axis] if given else None)
    return _give(d, x, d.node("Sub", [x, top])[0])


def _cut(d: Draft, x: str) -> str:
    axis, end = d.rng.randrange(len(d.dims[x])), d.rng.choice((1, 3, -1, 2**31 - 1))
    if end == -1:
        end = 2
    made, = d.node("Slice", [x, *(d.constant(fixed([v]), (1,)) for v in (0, end, axis))])
    dim = d.dims[x][axis]
    cut: str | int = dim if end > 99 else min(dim, end) if isinstance(dim, int) else f"min({dim}, {end})"
    return _give(d, x, made, (*d.dims[x][:axis], cut, *d.dims[x][axis + 1:])) if cut == dim or isinstance(cut, int) else made


def _doubled(d: Draft, x: str) -> str:
    """Concat of a value with another that has its shape."""
    return d.node("Concat", [x, _operand(d, x, d.dims[x])], axis=d.rng.randrange(len(d.dims[x])))[0]


def _masked(d: Draft, x: str) -> str:
    mask = d.operand(stretched(d, d.dims[x]), "bool")
    return _give(d, x, d.node("Where", [mask, x, _operand(d, x, (), 9)])[0])


def _looked_up(d: Draft, x: str) -> str:
    rows = d.operand((d.size(1, 17),), "int64", places("int64", d.dims[x][0]), of=d.dims[x][:1])
    return _give(d, x, d.node("Gather", [x, rows], axis=0)[0], (*d.dims[rows], *d.dims[x][1:]))


def _reshaped(d: Draft, x: str) -> str:
    """Two leading dims merged."""
    dims = d.dims[x]
    if len(dims) < 2:
        return _unary(d, x)
    last = dims[-1]
    if isinstance(last, int):
        return d.node("Reshape", [x, d.constant(fixed([-1, last]), (2,))])[0]
    return d.node("Flatten", [x], axis=1)[0]


STEPS: tuple[Step, ...] = (_unary, _unary, _binary, _binary, _join, _join, _transposed, _projected, _projected, _softmax,
                           _normalised, _centred, _cut, _masked, _looked_up, _doubled, _reshaped)


def chain(d: Draft) -> None:
    """Steps until one gives a shape that is not tracked."""
    dtype = d.rng.choices(("float32", "float64", "int64", "int32"), (85, 5, 7, 3))[0]
    x = d.operand(d.extents(d.rng.choice((1, 2, 2, 3))), dtype, within(dtype, -2, 2), role="feed")
    for _ in range(d.rng.randint(2, 5)):
        if x not in d.dims:
            break
        x = d.rng.choice(STEPS)(d, x)
    inner = [n.output[0] for n in d.nodes[:-1] if n.output[0] in d.dims]
    d.outputs = [x, *d.rng.sample(inner, min(len(inner), d.rng.choice((0, 0, 1))))]
    if x not in [n.output[0] for n in d.nodes]:
        d.outputs = [d.nodes[-1].output[0]]


def opset_for(op: str, rng: Random) -> int:
    """A supported opset that has the operator, the edges of its versions among them."""
    versions = elementwise.schema_versions(op)
    choices = {v for s in versions for v in (s, s - 1)} | {17, 21, 24}
    if op == "Upsample":
        choices = {7, 8, 9}
    elif op == "Scatter":
        choices = {9, 10}
    elif op == "Scan" or op == "Constant":  # before it had a batch
        choices -= {7, 8}
    return rng.choice(sorted(o for o in choices if 7 <= o <= NEWEST and defs.has(op, o, "") and o >= min(versions)))


#: What cases are compiled for in turn.
TARGETS = ("cpu", "cpu", "cpu-avx2", "cpu-generic")


def large_case(seed: int, number: int) -> Case:
    """Like `random_case`, at sizes of many blocks."""
    return random_case(seed, number, LARGE)


def random_case(seed: int, number: int, scale: Scale = SMALL, generation: int = NOW) -> Case:
    """Case `number` of a seed, always the same one while there are the same recipes: those of a `generation`."""
    rng = Random(f"{seed}/{number}")
    pick = rng.random()
    if pick < 0.72:
        recipes = [op for op in RECIPES if _SINCE.get(op, 0) <= generation]
        op = rng.choices(recipes, [_WEIGHTS.get(n, 1) for n in recipes])[0]
        opset = rng.choice((17, 21)) if op in domains.RECIPES else opset_for(op, rng)
        d = Draft(rng, opset, scale=scale, generation=generation)
        title, recipe = op, RECIPES[op]
    else:
        d = Draft(rng, rng.choice((13, 17, 18, 21, 24)), scale=scale, generation=generation)
        title, recipe = ("chain", chain) if pick < 0.94 else rng.choice(list(movement.SHAPE_CHAINS.items()))
    if generation < 5:
        d.fed_share = 0.03
    d.constant_share = rng.choice((0.0, 0.25, 0.25, 0.6))
    recipe(d)
    if not any(o.role == "feed" for o in d.operands):  # something must be fed, or nothing is left to run
        k = next((k for k, o in enumerate(d.operands) if o.dims and o.dtype == "float32"), None)
        if k is not None:
            d.operands[k] = replace(d.operands[k], role="feed")
    other = title in domains.RECIPES  # of which no schema is known
    made = break_draft(d) if rng.random() < 0.12 and not other else ""
    around = surround(d, Random(f"{seed}/{number}/around")) if not made and not other else ""
    case = d.finish(", ".join(text for text in (title, made, around) if text), made)
    return replace(case, target=TARGETS[number % len(TARGETS)])

