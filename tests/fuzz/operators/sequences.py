"""Recipes of operators on sequences and signals: Attention, DFT, STFT."""

from __future__ import annotations

from tests.fuzz.operators.case import Draft
from tests.fuzz.operators.elementwise import Recipe
from tests.fuzz.operators.values import fixed, within


def attention(d: Draft) -> None:
    """Heads in an axis of their own or side by side, shared by groups or not; masks, caches and windows by chance."""
    batch, rows, keys = d.rng.choice((1, 2, d.size(1, 3))), d.size(1, 17), d.size(1, 17)
    groups, members = d.rng.choice((1, 2)), d.rng.choice((1, 1, 2, 3))
    size, width = d.rng.choice((1, 4, 8)), d.rng.choice((3, 8))
    heads, apart = groups * members, d.chance(0.6)
    more: dict[str, object] = {} if apart else {"q_num_heads": heads, "kv_num_heads": groups}
    forms = [(heads, rows, size), (groups, keys, size), (groups, keys, width)]
    draw = within("float32", -2, 2)
    inputs = [d.operand((batch, *f) if apart else (batch, f[1], f[0] * f[2]), "float32", draw) for f in forms]
    cached = d.chance(0.3)
    past = d.size(1, 9) if cached else 0
    if cached or d.chance(0.5):
        inputs.append("")
        if not cached and d.chance(0.8):
            dims = d.rng.choice(((rows, keys), (batch, 1, rows, keys), (batch, heads, 1, keys)))
            kind = d.rng.choice(("bool", "float32"))
            inputs[-1] = d.operand(dims, kind, None if kind == "bool" else within(kind, -3, 3))
    if cached:
        inputs += [d.operand((batch, groups, past, own), "float32", draw) for own in (size, width)]
    if d.chance(0.4):
        more["is_causal"] = 1
    if d.opset >= 25 and d.chance(0.4):
        more |= {"left_window_size": d.rng.choice((0, 2, 5)), "right_window_size": d.rng.choice((-1, 0, 3))}
    outputs = 3 if cached and d.chance(0.5) else 1
    d.node("Attention", inputs, outputs, scale=d.maybe(0.3, 0.5), softcap=d.maybe(0.2, 2.0), **more)


def dft(d: Draft) -> None:
    """Of numbers or pairs, of another length than they have, along any axis but the last; inverse, and half of it."""
    rank, parts = d.rng.choice((2, 3, 3)), d.rng.choice((1, 2))
    inverse = d.chance(0.4)
    onesided = d.chance(0.4) and (inverse or parts == 1)
    parts = 2 if inverse and onesided else parts
    dims = [d.size(2, 17) if d.chance(0.5) else d.rng.choice((2, 5, 8)) for _ in range(rank - 1)]
    axis = d.rng.randrange(rank - 1)
    x = d.operand((*dims, parts), "float32", within("float32", -2, 2))
    length = d.constant(fixed(d.rng.choice((1, 4, 7, 12))), ()) if d.chance(0.3) else ""
    given = axis - rank if d.chance(0.3) else axis
    flags = {"inverse": d.maybe(0.7, int(inverse)) if not inverse else 1, "onesided": 1 if onesided else None}
    if d.opset < 20:
        d.node("DFT", [x, length] if length else [x], axis=given, **flags)
    else:
        d.node("DFT", [x, length, d.constant(fixed(given), ())], **flags)


def stft(d: Draft) -> None:
    parts, length = d.rng.choice((1, 1, 2)), d.rng.choice((1, 4, 7, 8))
    x = d.operand((d.rng.choice((1, 2)), d.size(length, 65), parts), "float32", within("float32", -2, 2))
    form = d.rng.choice(("window", "length", "both"))
    window = "" if form == "length" else d.operand((length,), "float32", within("float32", 0, 1))
    step, role = fixed(d.rng.choice((1, 2, 5))), d.rng.choice(("initializer", "node"))
    inputs = [x, d.constant(step, ()) if d.generation >= 8 else d.operand((), "int64", step, role), window]
    if form != "window":
        inputs.append(d.constant(fixed(length), ()))
    d.node("STFT", inputs, onesided=0 if parts == 2 else d.maybe(0.5, d.rng.choice((0, 1))))


def mel_weights(d: Draft) -> None:
    """Edges that lie well within a bin, and bands of several bins."""
    bands, length, rate = d.rng.choice((1, 3, 8)), d.rng.choice((16, 64, 255)), d.rng.choice((100, 8000))
    inputs = [d.constant(fixed(v), ()) for v in (bands, length, rate)]
    inputs += [d.operand((), "float32", within("float32", low * rate, high * rate)) for low, high in ((0.01, 0.1), (0.3, 0.45))]
    d.node("MelWeightMatrix", inputs, output_datatype=d.maybe(0.3, d.rng.choice((1, 11))))


RECIPES: dict[str, Recipe] = {"Attention": attention, "DFT": dft, "STFT": stft}
FORMULAS: dict[str, Recipe] = {"MelWeightMatrix": mel_weights}
