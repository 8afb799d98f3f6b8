"""Names of Dims, made of what a file calls things."""

from __future__ import annotations

import keyword
import re


def identifier(raw: str) -> str:
    """`raw` as a readable Python identifier that can stand in a size expression."""
    text = re.sub(r"\W+", "_", raw.replace("+", " plus ").replace("-", " minus ").strip(), flags=re.ASCII).strip("_")
    if not text or text[0].isdigit() or keyword.iskeyword(text) or text in ("max", "min"):
        text = f"d_{text}"
    return text
