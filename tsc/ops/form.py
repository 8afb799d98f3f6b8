"""What a node may be of an operator that the standard has no schema of: its operands, results, element types and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FLOAT32 = ("float32",)
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64")
BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class Form:
    """`inputs` and `outputs` are words "name:T", "name?:T" (it may be left out), "name*:T" (any number of them) and "name**:T"
    (each of a type of its own), where T is a key of `types`: operands of one key are of one of its element types. `defaults`
    are those of attributes; `optional` and `required` are attributes without one, each with its kind: "int", "ints", "float",
    "floats", "string" or "strings". `off` are values of attributes that no rule reads by which a node says, too, that something
    is not done."""

    inputs: str
    outputs: str
    types: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
