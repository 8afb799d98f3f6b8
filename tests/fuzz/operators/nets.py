"""Nets: three to nine blocks as models have them, with residuals, heads, branches, masks and shapes computed from shapes, so
that fusion, views and memory are tried on graphs of ten to a hundred nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tests.fuzz.operators.case import Case, Dims, Draft
from tests.fuzz.operators.chains import TARGETS
from tests.fuzz.operators.values import Draw, fixed, places, within

#: A block: from the value that it reads to the one that it gives; None where it does not fit the value's shape.
Block = Callable[[Draft, str], str | None]

_WIDTHS = (6, 8, 12, 16, 24)
#: What keeps values small, or grows them little.
_GENTLE = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Erf", "Softsign", "Sin", "Identity", "HardSwish", "LeakyRelu", "Elu")


def _made(d: Draft, op: str, inputs: Sequence[str], dims: Dims, **attributes: object) -> str:
    """The one output of a new node, of the type of its first operand."""
    name = d.node(op, inputs, **attributes)[0]
    d.dims[name], d.dtypes[name] = tuple(dims), d.dtypes[inputs[0]]
    return name


def _weight(d: Draft, dims: Sequence[str | int], draw: Draw | None = None) -> str:
    role = d.rng.choice(("initializer", "initializer", "initializer", "node", "feed"))
    return d.operand(dims, "float32", draw or within("float32", -0.5, 0.5), role)


def _ints(d: Draft, *values: int) -> str:
    return d.operand((len(values),), "int64", fixed(values), d.rng.choice(("initializer", "node")))


def _gentle(d: Draft, x: str) -> str:
    return _made(d, d.rng.choice(_GENTLE), [x], d.dims[x])


def _joined(d: Draft, x: str, y: str) -> str:
    """Two values of one shape."""
    pair = [x, y] if d.chance(0.5) else [y, x]
    return _made(d, d.rng.choice(("Add", "Add", "Add", "Mul", "Sub", "Max")), pair, d.dims[x])


def _linear(d: Draft, x: str, columns: int) -> str | None:
    *rows, depth = d.dims[x]
    if not rows or not isinstance(depth, int):
        return None
    made = _made(d, "MatMul", [x, _weight(d, (depth, columns))], (*rows, columns))
    return _made(d, "Add", [made, _weight(d, (columns,))], d.dims[made]) if d.chance(0.7) else made


def _normalised(d: Draft, x: str) -> str | None:
    """Layer norm, written as one node or as exporters used to, RMS norm, or softmax."""
    width, dims = d.dims[x][-1:], d.dims[x]
    if not dims:
        return None
    match d.rng.randrange(4):
        case 0:
            return _made(d, "LayerNormalization", [x, _weight(d, width), _weight(d, width)], dims)
        case 1:
            return _made(d, "Softmax", [x], dims, axis=-1)
    last = _ints(d, -1)
    inputs, axes = ([last], None) if d.opset >= 18 else ([], [-1])
    if d.chance(0.5):
        x = _made(d, "Sub", [x, _made(d, "ReduceMean", [x, *inputs], (*dims[:-1], 1), axes=axes)], dims)
    square = _made(d, "Mul", [x, x], dims)
    mean = _made(d, "ReduceMean", [square, *inputs], (*dims[:-1], 1), axes=axes)
    shifted = _made(d, "Add", [mean, _weight(d, (), fixed(0.01, "float32"))], d.dims[mean])
    return _made(d, "Div", [x, _made(d, "Sqrt", [shifted], d.dims[mean])], dims)


def _mlp(d: Draft, x: str) -> str | None:
    width = d.dims[x][-1] if d.dims[x] else 0
    hidden = _linear(d, x, d.rng.choice(_WIDTHS))
    if hidden is None or not isinstance(width, int):
        return None
    match d.rng.randrange(3):
        case 0:
            hidden = _made(d, "Mul", [hidden, _made(d, "Sigmoid", [hidden], d.dims[hidden])], d.dims[hidden])
        case 1:
            inner = _made(d, "Erf", [_made(d, "Div", [hidden, _weight(d, (), fixed(1.4142135, "float32"))], d.dims[hidden])],
                          d.dims[hidden])
            grown = _made(d, "Add", [inner, _weight(d, (), fixed(1, "float32"))], d.dims[hidden])
            hidden = _made(d, "Mul", [hidden, grown], d.dims[hidden])
        case _:
            hidden = _gentle(d, hidden)
    made = _linear(d, hidden, width)
    return made if made is None or d.chance(0.3) else _joined(d, made, x)


def _attention(d: Draft, x: str) -> str | None:
    """Heads of [batch, rows, width], with a mask that is fed, causal or missing, and the residual behind."""
    if len(d.dims[x]) != 3 or not isinstance(d.dims[x][2], int) or d.dims[x][2] % 2:
        return None
    (batch, rows, width), heads = d.dims[x], 2
    each = int(width) // heads
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        part = _linear(d, x, int(width))
        assert part is not None
        split = _made(d, "Reshape", [part, _ints(d, 0, 0, heads, each)], (batch, rows, heads, each))
        shape = [d.dims[split][k] for k in order]
        parts.append(_made(d, "Transpose", [split], shape, perm=order))
    square = (batch, heads, rows, rows)
    scores = _made(d, "MatMul", parts[:2], square)
    scores = _made(d, "Mul", [scores, _weight(d, (), fixed(0.5, "float32"))], square)
    match d.rng.randrange(3):
        case 0:
            scores = _made(d, "Add", [scores, _weight(d, (batch, 1, 1, rows))], square)
        case 1:
            scores = _made(d, "Where", [_causal(d, x), scores, _weight(d, (), fixed(-1e9, "float32"))], square)
            d.dtypes[scores] = "float32"
    made = _made(d, "MatMul", [_made(d, "Softmax", [scores], square, axis=-1), parts[2]], (batch, heads, rows, each))
    made = _made(d, "Transpose", [made], (batch, rows, heads, each), perm=[0, 2, 1, 3])
    made = _made(d, "Reshape", [made, _ints(d, 0, 0, int(width))], d.dims[x])
    return _joined(d, made, x)


def _extent(d: Draft, x: str, axis: int) -> str:
    """A dim of a value as a list of one."""
    return _made(d, "Gather", [_made(d, "Shape", [x], (len(d.dims[x]),)), _ints(d, axis)], (1,), axis=0)


def _causal(d: Draft, x: str) -> str:
    """[rows, rows]: whether a row comes at or behind a column."""
    rows = d.dims[x][1]
    count = _made(d, "Squeeze", [_extent(d, x, 1), _ints(d, 0)], ())
    one, zero = (d.operand((), "int64", fixed(v), "initializer") for v in (1, 0))
    line = _made(d, "Range", [zero, count, one], (rows,))
    down = _made(d, "Unsqueeze", [line, _ints(d, 1)], (rows, 1))
    made = d.node(d.rng.choice(("GreaterOrEqual", "Greater")) if d.chance(0.8) else "GreaterOrEqual", [down, line])[0]
    d.dims[made], d.dtypes[made] = (rows, rows), "bool"
    return made


def _flat(d: Draft, x: str) -> str | None:
    """Two leading dims merged by what Shape says, something done there, and back."""
    if len(d.dims[x]) < 3 or not isinstance(d.dims[x][-1], int):
        return None
    shape = _made(d, "Shape", [x], (len(d.dims[x]),))
    d.dtypes[shape] = "int64"
    width = int(d.dims[x][-1])
    flat = _made(d, "Reshape", [x, _ints(d, -1, width)], ("?", width))
    inner = _gentle(d, flat)
    if d.chance(0.6):
        inner = _made(d, "MatMul", [inner, _weight(d, (width, width))], d.dims[flat])
    if d.chance(0.4):
        inner = _joined(d, inner, flat)
    back = _made(d, "Reshape", [inner, shape], d.dims[x])
    del d.dims[flat], d.dims[inner]
    return back


def _halves(d: Draft, x: str) -> str | None:
    """The last dim split in two, which go different ways and come together; perhaps the other way round."""
    *rows, width = d.dims[x] or (1,)
    if not isinstance(width, int) or width % 2 or not rows:
        return None
    half = (*rows, width // 2)
    first, second = d.node("Split", [x, _ints(d, width // 2, width // 2)], 2, axis=len(rows))
    for name in (first, second):
        d.dims[name], d.dtypes[name] = half, "float32"
    if d.chance(0.3):  # a gate
        gated = _made(d, "Mul", [first, _made(d, "Sigmoid", [second], half)], half)
        return _made(d, "Concat", [gated, first], (*rows, width), axis=-1)
    turned = _made(d, "Neg", [second], half)
    return _made(d, "Concat", [turned, _gentle(d, first)], (*rows, width), axis=-1)


def _table(d: Draft, x: str) -> str | None:
    """As many rows of a table as there are, added."""
    if len(d.dims[x]) != 3:
        return None
    table = _weight(d, (70, *d.dims[x][2:]))
    rows = _made(d, "Slice", [table, _ints(d, 0), _extent(d, x, 1), _ints(d, 0)], d.dims[x][1:])
    return _made(d, "Add", [x, rows], d.dims[x])


def _excited(d: Draft, x: str) -> str | None:
    """Times what a row of means says."""
    dims = d.dims[x]
    if len(dims) < 2:
        return None
    axis = d.rng.randrange(len(dims))
    inputs, axes = ([_ints(d, axis)], None) if d.opset >= 18 else ([], [axis])
    mean = _made(d, "ReduceMean", [x, *inputs], (*dims[:axis], 1, *dims[axis + 1:]), axes=axes)
    return _made(d, "Mul", [x, _made(d, "Sigmoid", [mean], d.dims[mean])], dims)


def _turned(d: Draft, x: str) -> str | None:
    """The leading dims change places; what comes behind sees another layout."""
    order = [*range(len(d.dims[x]) - 1)]
    if len(order) < 2:
        return None
    d.rng.shuffle(order)
    return _made(d, "Transpose", [x], [d.dims[x][k] for k in (*order, len(order))], perm=[*order, len(order)])


def _rows_of(d: Draft, x: str) -> str | None:
    """Some of the leading rows, by fed indices."""
    if not d.dims[x]:
        return None
    rows = d.operand((d.size(1, 17),), "int64", places("int64", d.dims[x][0]), "feed")
    return _made(d, "Gather", [x, rows], (*d.dims[rows], *d.dims[x][1:]), axis=0)


def _blended(d: Draft, x: str) -> str:
    other = _weight(d, d.dims[x][-1:], within("float32", -1, 1))
    mask = d.operand(d.dims[x], "bool")
    made = _made(d, "Where", [mask, x, other], d.dims[x])
    d.dtypes[made] = "float32"
    return made


BLOCKS: tuple[Block, ...] = (_gentle, _mlp, _mlp, _attention, _attention, _attention, _normalised, _normalised, _flat, _halves,
                             _table, _excited, _turned, _rows_of, _blended)


# -- images ----------------------------------------------------------------------------------------------------

def _conv(d: Draft, x: str, channels: int | None = None, kernel: int | None = None) -> str:
    """A convolution that keeps the image's size, with what comes behind one."""
    batch, depth, *image = d.dims[x]
    channels, kernel = channels or d.rng.choice((3, 8, 17)), kernel or d.rng.choice((1, 3, 3))
    groups = int(depth) if channels == depth and d.chance(0.3) else 1
    weight = _weight(d, (channels, int(depth) // groups, kernel, kernel))
    inputs = [x, weight, _weight(d, (channels,))][:2 + d.chance(0.6)]
    made = _made(d, "Conv", inputs, (batch, channels, *image), kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, group=groups)
    if d.chance(0.5):
        own = [_weight(d, (channels,), within("float32", 0.5, 1.5)) for _ in range(4)]
        made = _made(d, "BatchNormalization", [made, *own], d.dims[made])
    return _made(d, "Relu", [made], d.dims[made]) if d.chance(0.6) else made


def _residual(d: Draft, x: str) -> str:
    return _joined(d, _conv(d, _conv(d, x), int(d.dims[x][1])), x)


def _branches(d: Draft, x: str) -> str:
    """Two ways side by side."""
    parts = [_conv(d, x), x if d.chance(0.4) else _conv(d, x, kernel=1)]
    channels = sum(int(d.dims[p][1]) for p in parts)
    return _made(d, "Concat", parts, (d.dims[x][0], channels, *d.dims[x][2:]), axis=1)


def _smoothed(d: Draft, x: str) -> str:
    return _made(d, d.rng.choice(("MaxPool", "AveragePool")), [x], d.dims[x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _squeezed(d: Draft, x: str) -> str:
    """Channels times what all of the image says."""
    channels = int(d.dims[x][1])
    mean = _made(d, "GlobalAveragePool", [x], (*d.dims[x][:2], 1, 1))
    inner = _conv(d, mean, d.rng.choice((1, 4)), 1)
    gate = _made(d, "Sigmoid", [_conv(d, inner, channels, 1)], d.dims[mean])
    return _made(d, "Mul", [x, gate], d.dims[x])


def _grown(d: Draft, x: str) -> str:
    """Twice as large, and halved again."""
    scales = d.operand((4,), "float32", fixed([1, 1, 2, 2], "float32"), "initializer")
    large = _made(d, "Resize", [x, "", scales], ("?",), mode="nearest", coordinate_transformation_mode="asymmetric",
                  nearest_mode="floor")
    back = _made(d, d.rng.choice(("MaxPool", "AveragePool")), [large], d.dims[x], kernel_shape=[2, 2], strides=[2, 2])
    del d.dims[large]
    return back


def _pyramid(d: Draft, x: str) -> str:
    """A way at half the size, or a quarter, which grows back, by a factor where sizes are even or to its size, and joins x."""
    (batch, depth, *_), inner, small, steps = d.dims[x], x, list[str](), d.rng.choice((1, 1, 2))
    for _ in range(steps):
        if d.chance(0.5):
            weight = _weight(d, (depth, int(depth), 3, 3))
            made = d.node("Conv", [inner, weight], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
        else:
            made = d.node("MaxPool", [inner], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
        inner, = made
        d.dims[inner], d.dtypes[inner] = (batch, depth, "?", "?"), "float32"
        small.append(inner)
        if d.chance(0.5):
            inner = _gentle(d, inner)
            small.append(inner)
    if d.chance(0.5):
        sizes = _made(d, "Shape", [x], (4,))
        d.dtypes[sizes] = "int64"
        wanted = ["", sizes]
    else:
        wanted = [d.operand((4,), "float32", fixed([1, 1, 2**steps, 2**steps], "float32"), "initializer")]
    mode = {"mode": "nearest", "nearest_mode": "floor"} if d.chance(0.5) else {"mode": "linear"}
    back = _made(d, "Resize", [inner, "", *wanted], d.dims[x], coordinate_transformation_mode="asymmetric", **mode)
    for name in small:
        del d.dims[name]
    return _joined(d, back, x)


def _by_pixel(d: Draft, x: str) -> str:
    """What works on the channels of each pixel, as rows of an image or one behind the other, and the image again."""
    batch, depth, *image = d.dims[x]
    apart = d.chance(0.5)
    if apart:
        inner = _made(d, "Transpose", [x], (batch, *image, depth), perm=[0, 2, 3, 1])
    else:
        inner = _made(d, "Reshape", [x, _ints(d, 0, int(depth), -1)], (batch, depth, "?"))
        inner = _made(d, "Transpose", [inner], (batch, "?", depth), perm=[0, 2, 1])
    for _ in range(d.rng.randint(1, 2)):
        inner = d.rng.choice((_mlp, _mlp, _normalised, _gentle))(d, inner) or inner
    if apart:
        back = _made(d, "Transpose", [inner], d.dims[x], perm=[0, 3, 1, 2])
    else:
        flat = _made(d, "Transpose", [inner], (batch, depth, "?"), perm=[0, 2, 1])
        shape = _made(d, "Shape", [x], (4,))
        d.dtypes[shape] = "int64"
        back = _made(d, "Reshape", [flat, shape], d.dims[x])
    for name in [name for name, dims in d.dims.items() if "?" in dims]:
        del d.dims[name]
    return _joined(d, back, x) if d.chance(0.5) else back


IMAGES: tuple[Callable[[Draft, str], str], ...] = (_conv, _conv, _residual, _residual, _branches, _smoothed, _squeezed, _grown,
                                                   _pyramid, _by_pixel, _by_pixel, _gentle)


def net(d: Draft) -> None:
    """Blocks one behind the other, some of them read twice."""
    image = d.chance(0.3)
    dims: Dims = ((d.size(1, 3), d.rng.choice((3, 8)), d.size(1, 17), d.size(1, 17)) if image else
                  (d.size(1, 5), d.size(1, 33), d.rng.choice(_WIDTHS)))
    alive = [d.operand(dims, "float32", within("float32", -2, 2), "feed")]
    blocks: Sequence[Block] = IMAGES if image else BLOCKS
    for _ in range(d.rng.randint(3, 9)):
        x = d.rng.choice(alive[-2:])
        made = d.rng.choice(blocks)(d, x)
        if made is not None:
            alive.append(made)
        same = [a for a in alive[:-1] if d.dims[a] == d.dims[alive[-1]]]
        if same and d.chance(0.25):
            alive.append(_joined(d, alive[-1], d.rng.choice(same)))
    if len(alive) == 1:
        alive.append(_gentle(d, alive[0]))
    read = {name for node in d.nodes for name in node.input}
    made_here = [name for node in d.nodes for name in node.output]
    ends = [name for name in made_here if name not in read]
    inner = [name for name in alive[1:] if name not in ends]
    d.outputs = [*ends, *d.rng.sample(inner, min(len(inner), d.rng.choice((0, 0, 1, 2))))]


def random_net(seed: int, number: int) -> Case:
    """Net `number` of a seed, always the same one."""
    rng = Random(f"net/{seed}/{number}")
    d = Draft(rng, rng.choice((17, 18, 21)))
    net(d)
    return replace(d.finish("net"), target=TARGETS[number % len(TARGETS)])
