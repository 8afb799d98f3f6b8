"""What data errors say, and the status codes that stand for it."""

from __future__ import annotations

from tests.poly.programs import at, axis, buffer, layer_norm
from tsc.sym import dim
from tsc.te.compute import MAX, Compute, Program, SizeParam
from tsc.te.expr import CheckedIndex
from tsc.te.factored.factoring import Factoring, proposed
from tsc.te.passes.messages import messages_of, with_messages


def picked_by_a_local() -> Program:
    """out[b, c] = table[most[b], c] with most[b] = max over k of ids[b, k], which lives in the kernel alone; then again at
    other places, from a table of seven rows."""
    ids, more = buffer("ids", "B", "K", dtype="int64"), buffer("more", "B", dtype="int64")
    table, seven = buffer("table", "V", "C"), buffer("seven", 7, "C")
    most, first, out = buffer("most", "B", dtype="int64"), buffer("first", "B", "C"), buffer("out", "B", "C")
    i, k, b, c, x, y = axis("i", "B"), axis("k", "K"), axis("b", "B"), axis("c", "C"), axis("x", "B"), axis("y", "C")
    return Program(
        (ids, more, table, seven), (first, out),
        (Compute(most, (i,), at(ids, i, k), (k,), MAX),
         Compute(first, (b, c), at(table, CheckedIndex(at(most, b), dim("V"), "most"), c)),
         Compute(out, (x, y), at(seven, CheckedIndex(at(more, x), dim("V") * 0 + 7, "more"), y))),
        tuple(map(SizeParam, "BKVC")))


def test_a_message_names_inputs_even_where_a_local_holds_the_index() -> None:
    first, second = messages_of(with_messages(picked_by_a_local()))
    assert first == "'{ids}' holds an index that is out of bounds; give indices from -({V}) to {V} - 1"
    assert second == "'{more}' holds an index that is out of bounds; give indices from -7 to 6"
    assert messages_of(picked_by_a_local()) == ("most", "more")


def test_codes_do_not_depend_on_how_a_program_is_cut() -> None:
    program = with_messages(layer_norm(20, gather=True))
    factoring = proposed(program, 8, True)
    assert isinstance(factoring, Factoring)
    said = {message for part in factoring.programs(program) for message in messages_of(part)}
    assert said == set(messages_of(program)) and len(said) == 1
