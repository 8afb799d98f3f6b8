"""The page that says what runs: every operator, in which versions, and how many of the suite's cases it passes in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from tests.conformance.cases import core, missing, suite
from tsc.graph.onnx.importer import NEWEST_OPSET, OLDEST_OPSET
from tsc.ops import all_ops

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
_DOMAINS = {
    "com.microsoft": "what ONNX Runtime's optimisers and quantisers write; beside ONNX Runtime (`tests/ops/test_samples.py`)",
    "ai.onnx.ml": "what scikit-learn's models are exported to; beside the standard's reference and ONNX Runtime"}


def page() -> str:
    """The whole page, in Markdown. Needs the list of the core's cases, and what `missing.json` says."""
    counts = _counts()
    total, lost = len(core()), len(missing())
    lines = [
        "# Operators", "",
        "Made by `python3 dev.py conformance --page`; a test compares it with what the code says.", "",
        f"Of the {total} core cases of the ONNX standard's node suite {total - lost} pass, each held against the suite's own",
        "outputs (`python3 dev.py conformance`). A model with an operator that is not here is refused before anything is",
        "compiled, with the whole list of them; `python -m tsc doctor model.onnx` prints that alone.", "",
        "## The standard's", "",
        "The versions of each operator (by the opset that brought them), with the cases that pass of those there are; a",
        "version without a number has no case of its own.", "", "| operator | versions |", "|---|---|",
        *(f"| {op} | {versions} |" for op, versions in _rows(counts)), "", "## Of other domains"]
    for domain, words in _DOMAINS.items():
        names = sorted(op.name for op in all_ops() if op.domain == domain)
        lines += ["", f"`{domain}`: {words}.", "", ", ".join(names) + "."]
    lines += ["", "## Cases that do not pass", "", "| case | why |", "|---|---|",
              *(f"| {name.removeprefix('test_')} | {_cell(why)} |" for name, why in sorted(missing().items())), ""]
    return "\n".join(lines)


def _rows(counts: dict[tuple[str, int], list[bool]]) -> Iterator[tuple[str, str]]:
    """Each operator of the standard, with its versions in words."""
    versions: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated and schema.since_version <= NEWEST_OPSET:
            versions.setdefault(schema.name, set()).add(schema.since_version)
    for name in sorted(op.name for op in all_ops() if not op.domain):
        since = sorted(versions.get(name, ()))
        kept = [version for k, version in enumerate(since) if k + 1 == len(since) or since[k + 1] > OLDEST_OPSET]
        yield name, ", ".join(f"{version}{_passed(counts.get((name, version)))}" for version in kept)


def _counts() -> dict[tuple[str, int], list[bool]]:
    """Whether each core case passes, by its operator and the version of that."""
    found: dict[tuple[str, int], list[bool]] = {}
    for name in core():
        model = suite()[name].model
        opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
        (node,) = model.graph.node
        version = onnx.defs.get_schema(node.op_type, opset, node.domain).since_version
        found.setdefault((node.op_type, version), []).append(name not in missing())
    return found


def _passed(cases: list[bool] | None) -> str:
    return "" if not cases else f" ({sum(cases)})" if all(cases) else f" ({sum(cases)} of {len(cases)})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
