"""The polyhedral core and the loop IR know patterns and intrinsics, no operators: no ONNX operator's name occurs in them.

Identifiers and strings that are identifiers are looked at, whole and by their words, whatever their case. Words that ONNX took
from the language of arithmetic, of sets and of programs are allowed, each with what it means there.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

TSC = Path(__file__).resolve().parent.parent / "tsc"
OPERATORS = {schema.name.lower() for schema in onnx.defs.get_all_schemas()}
#: Words that are operators' names too, by what they mean in these two rooms.
ALLOWED = {
    "intrinsics and monoids of te": "add sub mul div mod min max neg abs and or xor not log floor round sign",
    "nodes of a program": "if loop cast constant",
    "words of isl and of sets": "identity range equal unique",
    "the field's name of a pattern (Blelloch 1990), older than the operator": "scan",
    "words of English": "where size shape split sum tile",
    "NumPy and Python": "reshape slice",
}
WORDS = {word for words in ALLOWED.values() for word in words.split()}


def words(text: str) -> Iterator[str]:
    """An identifier without underscores, and its parts."""
    parts = [p for part in text.split("_") for p in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+", part)]
    yield text.replace("_", "").lower()
    yield from (part.lower() for part in parts)
    yield from ("".join(pair).lower() for pair in itertools.pairwise(parts))


def found_in(source: str) -> set[str]:
    """Operators' names among the identifiers and the strings of a module; documentation and messages are prose."""
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        if token.type == tokenize.STRING and not text.startswith(("f", "r")):
            text = ast.literal_eval(text)
        if isinstance(text, str) and text.isidentifier():
            found.update(w for w in words(text) if w in OPERATORS)
    return found


@pytest.mark.parametrize("room", ["poly", "loop_ir"])
def test_no_operator_is_named(room: str) -> None:
    for path in sorted((TSC / room).rglob("*.py")):
        named = found_in(path.read_text(encoding="utf-8")) - WORDS
        assert not named, f"{path.relative_to(TSC.parent)} names the operators {sorted(named)}"


def test_every_allowed_word_is_an_operator_that_is_used() -> None:
    paths = [path for room in ("poly", "loop_ir") for path in (TSC / room).rglob("*.py")]
    used = set().union(*(found_in(path.read_text(encoding="utf-8")) for path in paths))
    assert not WORDS - OPERATORS
    assert not WORDS - used


@pytest.mark.parametrize("source", [
    "def is_softmax(): pass", "x = 'MatMul'", "class LayerNormalizationPattern: pass", "kind == 'conv'", "global_max_pool = 1",
    "matmul_rows()", "if name == 'ReduceSum': pass"])
def test_a_name_is_found(source: str) -> None:
    assert found_in(source) - WORDS
