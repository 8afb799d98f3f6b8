"""One Case end to end: compiled once by `tsc.compile`, run at all its shapes, and judged by both oracles."""

from __future__ import annotations

import random
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx import ModelProto, NodeProto

import tsc
from tests import hosts
from tests.fuzz.operators.case import Case, feeds_of, laid_out, model_of, values_of
from tests.fuzz.operators.conventions import Convention, convention_for
from tests.fuzz.operators.oracles import MORE_DRAWS, Answer, Expected, Reference, Runtime
from tests.fuzz.operators.rounding import exactly
from tests.fuzz.operators.sums import is_among
from tests.fuzz.operators.unneeded import outputs_anyhow, with_indices_inside
from tests.fuzz.operators.values import Array
from tests.machine import runnable
from tests.memory.guarded import MemoryFault, check_guarded
from tsc.config import Precision
from tsc.graph.rewriting import channels
from tsc.ops import find
from tsc.ops.base import PatternKind
from tsc.runtime.executable import Executable

hosts.watch()

#: From what is fed to the outputs.
Run = Callable[[Mapping[str, Array]], Sequence[Array]]
#: From a Case, its model and a cache folder to what runs it.
Subject = Callable[[Case, ModelProto, Path | None], Run]
#: How many times as large as float32's the error is that rounding a factor makes.
COARSER: Mapping[Precision, float] = {"fp32": 1.0, "tf32": 2.0**13, "fp16": 2.0**13, "bf16": 2.0**16}
#: How large float32 gets; what is beyond counts as this when distances are taken.
_TOP = 2.0**128


class Finding(AssertionError):
    """Something that must not be: a wrong value, an error without a type, an InternalError, a wrong model accepted."""


@dataclass
class Verdict:
    """What became of a Case: how many runs were right, refusals with their reasons, and conventions that were needed."""

    right: int = 0
    refused: list[str] = field(default_factory=list)  # the whole model
    refused_runs: list[str] = field(default_factory=list)
    rightly_refused: list[str] = field(default_factory=list)
    no_oracle: list[str] = field(default_factory=list)
    conventions: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)  # kernels whose vectors and tiles a check refused


def compiled(case: Case, model: ModelProto, folder: Path | None) -> Run:
    """The subject of it all. What it gave before is given again when all requests run as one."""
    executable = _executable(case, model, folder)
    before: list[tuple[Mapping[str, Array], Sequence[Array]]] = []

    def run(feeds: Mapping[str, Array]) -> Sequence[Array]:
        results = executable.run(None, feeds)
        before.append((feeds, results))
        for number, (found, (own, wanted)) in enumerate(zip(executable.run_many(None, [own for own, _ in before]), before)):
            if not _same(found, wanted) and _same(executable.run(None, own), wanted):  # some draw random numbers
                raise Finding(f"request {number} of {len(before)} gets another result when all run as one")
        return results

    return run


def _same(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return all(np.asarray(x).shape == np.asarray(y).shape and np.asarray(x).tobytes() == np.asarray(y).tobytes()
               for x, y in zip(a, b, strict=True))


def factored(case: Case, model: ModelProto, folder: Path | None) -> Run:
    """As `compiled`, with the reductions cut into chunks of 1 to 16, which are launched apart in every other case."""
    executable = _executable(case, model, folder, reduction_chunk=1 + case.seed // 256 % 16,
                             split_reductions=case.seed // 4096 % 2 > 0)
    return lambda feeds: executable.run(None, feeds)


def guarded(case: Case, model: ModelProto, folder: Path | None) -> Run:
    """As `compiled`, and each run with every buffer flush against unmapped pages, however memory is filled."""
    executable = _executable(case, model, folder)

    def run(feeds: Mapping[str, Array]) -> Sequence[Array]:
        plain = executable.run(None, feeds)
        for name, one, other in zip((o.name for o in executable.outputs), plain, check_guarded(executable, feeds)):
            if one.tobytes() != other.tobytes():
                raise MemoryFault(f"output '{name}' is another one where memory is guarded")
        return plain

    return run


def _executable(case: Case, model: ModelProto, folder: Path | None, **asked: Any) -> Executable:
    """For the Case's target, or for this machine where it cannot run that; for one thread or three, as it was compiled or as
    it was saved and loaded; every fourth with its nodes in another order; every other one with channels last wherever they
    can be, as images so small would never have them. `asked` are more Options."""
    runs = case.target.startswith("emu:") or case.target in {spec.name for spec in runnable()}
    target = case.target if runs else "cpu"
    threads = 1 + 2 * (case.seed // 8 % 2)
    options = tsc.Options(cache_dir=folder, jobs=1, precision=case.precision, **asked)
    source = model if case.seed // 65536 % 4 else _shuffled(model, case.seed)
    with patch.object(channels, "WORTH", 0 if case.seed // 32 % 2 else channels.WORTH):
        made = tsc.compile(source, dims=case.dims or None, target=target, threads=threads, options=options)
    if case.seed // 16 % 4:
        return made
    with tempfile.TemporaryDirectory() as kept:
        made.save(path := Path(kept) / "case.tsc")
        return tsc.load(path, threads, "shared" if case.seed // 64 % 2 else "private")


def _shuffled(model: ModelProto, seed: int) -> ModelProto:
    """The model with the nodes of its graph in any order."""
    made, nodes = ModelProto(), list(model.graph.node)
    random.Random(seed).shuffle(nodes)
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def check(case: Case, subject: Subject = compiled, folder: Path | None = None,
          told: Callable[[str], None] = lambda stage: None) -> Verdict:
    """Judge a Case. `told` hears which stage begins, for whoever survives a crash. Raises Finding."""
    verdict, values = Verdict(), [values_of(case, k) for k in range(len(case.runs))]
    told("build")
    model = model_of(case, values[0])
    runtime, reference = Runtime(model), Reference(model)
    told("oracles")
    answers = [(runtime.run(f), reference.run(f)) for f in (feeds_of(case, v) for v in values)]
    told("compile")
    try:
        with warnings.catch_warnings(record=True, action="always", category=tsc.SlowKernelWarning) as found:
            run = subject(case, model, folder)
        verdict.slow = [str(w.message) for w in found]
    except tsc.InternalError as error:
        raise Finding(f"InternalError at compile: {error}") from error
    except tsc.LaunchError as error:
        raise Finding(f"LaunchError at compile: {error}") from error
    except tsc.TscError as error:
        sound = any(a.values is not None for pair in answers for a in pair)
        (verdict.refused if sound and not case.broken else verdict.rightly_refused).append(reason(error))
        return verdict
    except Exception as error:
        raise Finding(f"untyped {type(error).__name__} at compile: {error}") from error
    for number, (v, pair) in enumerate(zip(values, answers)):
        told(f"run {number}")
        _check_run(case, model, run, v, pair, reference, verdict, f"run {number} at {dict(case.runs[number])}", told)
    return verdict


def _check_run(case: Case, model: ModelProto, run: Run, values: Mapping[str, Array], answers: tuple[Answer, Answer],
               reference: Reference, verdict: Verdict, where: str, told: Callable[[str], None]) -> None:
    feeds = feeds_of(case, values)
    try:
        got = [np.asarray(y) for y in run(laid_out(case, feeds))]
        told("oracles")  # which take long where they draw errors for what they compute in loops
    except tsc.InternalError as error:
        raise Finding(f"InternalError in {where}: {error}") from error
    except tsc.TscError as error:
        sound = any(a.values is not None for a in answers)
        (verdict.refused_runs if sound and not case.broken else verdict.rightly_refused).append(reason(error))
        return
    except MemoryFault as error:
        raise Finding(f"{error} in {where}") from error
    except Exception as error:
        raise Finding(f"untyped {type(error).__name__} in {where}: {error}") from error
    given = [a.values for a in answers if a.values is not None]
    if not given:
        if any(a.cannot for a in answers):
            verdict.no_oracle.append(" | ".join(a.refusal for a in answers))
            return
        entry = _convention(case, model, reference.all_values(feeds) or values)
        if entry is not None:
            verdict.conventions.append(entry.situation)
            return
        inside = with_indices_inside(case, values) if case.broken else None
        anyhow = outputs_anyhow(case, values) if inside is None else None
        if anyhow is not None and all(map(_alike, got, anyhow)):
            verdict.conventions.append("an index into nothing that no output needs")
            return
        if inside is None:
            raise Finding(f"accepted in {where} what both oracles refuse: {' | '.join(a.refusal for a in answers)}")
        verdict.conventions.append("an index outside that no output needs")
        model, feeds = model_of(case, inside), feeds_of(case, inside)
        reference = Reference(model)
        answers = Runtime(model).run(feeds), reference.run(feeds)
        given = [a.values for a in answers if a.values is not None]
    judge = Judge(case, model, feeds, reference, [a.values for a in answers], verdict, where,
                  reference.expected(feeds, given[-1]))
    for k, array in enumerate(got):
        try:
            judge.output(k, array)
        except Finding:  # of thousands of elements, the errors of a few may cancel in all of a few draws
            replace(judge, expected=reference.expected(feeds, given[-1], MORE_DRAWS)).output(k, array)
    verdict.right += 1


def _convention(case: Case, model: ModelProto, values: Mapping[str, Array]) -> Convention | None:
    nodes = [n for n in model.graph.node if n.op_type != "Constant"]
    return convention_for([(n, [values.get(i) for i in n.input]) for n in nodes], case.opset)


@dataclass
class Judge:
    """Compares the outputs of one run with what the oracles gave."""

    case: Case
    model: ModelProto
    feeds: Mapping[str, Array]
    reference: Reference
    given: Sequence[Sequence[Array] | None]  # by the runtime, by the reference
    verdict: Verdict
    where: str
    expected: Expected | None

    def output(self, k: int, got: Array) -> None:
        """Raise Finding unless output `k` is right."""
        name = self.model.graph.output[k].name
        candidates = [None if g is None else g[k] for g in self.given]
        known = [c for c in candidates if c is not None]
        shapes = {(c.shape, c.dtype.name) for c in known}
        if len(shapes) > 1:
            known = self._decided(candidates, f"{name} has shape and type {sorted(map(str, shapes))} by the oracles", got)
            shapes = {(c.shape, c.dtype.name) for c in known}
        if (got.shape, got.dtype.name) not in shapes:
            raise Finding(f"{name} is {got.dtype}{list(got.shape)} instead of {sorted(map(str, shapes))}, {self.where}")
        known = [c for c in known if c.shape == got.shape and c.dtype == got.dtype]
        if got.dtype.kind == "f":
            self._floats(k, name, got, known, candidates)
        else:
            self._whole(k, name, got, known, candidates)

    def _whole(self, k: int, name: str, got: Array, known: Sequence[Array], candidates: Sequence[Array | None]) -> None:
        sure, near, expected = np.ones(got.shape, bool), np.zeros(got.shape, bool), self.expected
        if expected is not None and expected.unsure[k].shape == got.shape:
            sure = ~expected.unsure[k]
            near = np.abs(got.astype(np.float64) - expected.exact[k].astype(np.float64)) <= expected.deviation[k]
        if len(known) == 2 and (sure & (known[0] != known[1])).any() and self.case.broken == "":
            known = self._decided(candidates, f"{name} differs between the oracles", got)
        same = np.zeros(got.shape, bool)
        for c in known:
            same |= got == c
        self._demand(same | (near & ~sure), name, got, known[0])

    def _floats(self, k: int, name: str, got: Array, known: Sequence[Array], candidates: Sequence[Array | None]) -> None:
        moves = all(exactly(n) for n in self.model.graph.node)
        expected = self.expected
        if moves:
            near = lambda a, b: (a == b) | (np.isnan(a) & np.isnan(b))  # noqa: E731
            exact = known[-1]
        elif expected is None or expected.exact[k].shape != got.shape or expected.exact[k].dtype.kind != "f":
            exact = known[-1].astype(np.float64)
            scale = max(_scale(exact), self._scale_within())
            times = COARSER[self.case.precision]
            near = lambda a, b: _near(a, b, times * (1e-5 * np.abs(exact) + 1e-6 * scale) + 2.0**-126)  # noqa: E731
        else:
            exact = expected.exact[k]
            limits = np.finfo(got.dtype)  # the last rounding: of half a unit, or of half the least number
            rounding = float(limits.eps) * np.where(np.isfinite(exact), np.abs(exact), 0) + float(limits.smallest_subnormal)
            allowed = COARSER[self.case.precision] * expected.deviation[k] + rounding
            near = lambda a, b: _near(a, b, allowed) | expected.unsure[k] | is_among(a, expected.outcomes[k])  # noqa: E731
        fits = [near(c, exact) for c in known]
        settled = np.logical_and.reduce(fits) if fits else np.ones(got.shape, bool)
        right = near(got, exact)
        loose = ~settled & ~right
        if loose.any():
            right = self._unsettled(right, near, got, known, candidates, name)
        self._demand(right, name, got, exact)
        zeros = (got == 0) & _agree_on_sign(known)
        if all(_keeps_signs(n) for n in self.model.graph.node) and (np.signbit(got) != np.signbit(known[-1]))[zeros].any():
            raise Finding(f"{name} has a zero of the wrong sign, {self.where}")

    def _scale_within(self) -> float:
        """How large what is fed to nodes of other domains is, which may cancel: nobody says what rounding moves there."""
        if all(not node.domain for node in self.model.graph.node):
            return 0.0
        return max((_scale(x) for x in self.feeds.values() if x.dtype.kind == "f"), default=0.0)

    def _unsettled(self, right: Array, near: Callable[[Array, Array], Array], got: Array, known: Sequence[Array],
                   candidates: Sequence[Array | None], name: str) -> Array:
        """Where an oracle in the model's own types parts from float64: overflow on the way, or another meaning."""
        together = np.logical_and.reduce([near(known[0].astype(np.float64), c.astype(np.float64)) for c in known])
        by_any = np.logical_or.reduce([near(got, c.astype(np.float64)) for c in known])
        right = right | np.logical_and.reduce([_near(got, c.astype(np.float64), _ALIKE * np.abs(c)) for c in known])
        apart = ~together & ~right
        if apart.any() and not (self.expected is not None and self.expected.range) and self.case.broken == "":
            chosen = self._decided(candidates, f"{name} differs between the oracles at {_first(apart)}", got)
            by_any = np.logical_or.reduce([near(got, c.astype(np.float64)) for c in chosen])
            return np.where(apart, by_any, right | (together & by_any))
        return right | by_any

    def _decided(self, candidates: Sequence[Array | None], what: str, got: Array | None = None) -> list[Array]:
        """The answers of the side that a convention names."""
        if self.case.broken:
            return [c for c in candidates if c is not None]
        entry = self._convention()
        if entry is None:
            like = [who for who, c in zip(("runtime", "reference"), candidates)
                    if got is not None and c is not None and _alike(got, c)]
            raise Finding(f"{what}, and no convention says who is right; ours is like {like}, {self.where}")
        self.verdict.conventions.append(entry.situation)
        wanted = {"runtime": candidates[:1], "reference": candidates[1:], "open": candidates}[entry.side]
        return [c for c in wanted if c is not None]

    def _convention(self) -> Convention | None:
        return _convention(self.case, self.model, self.reference.all_values(self.feeds) or self.feeds)

    def _demand(self, same: Array, name: str, got: Array, want: Array) -> None:
        if not same.all():
            entry = self._convention()
            if entry is not None and entry.side == "open" and (
                    got.dtype.kind != "f" or (same | np.isnan(got) | np.isnan(want)).all()):
                self.verdict.conventions.append(entry.situation)
                return
            at = _first(~same)
            raise Finding(f"{name} is {got[at]!r} instead of {want[at]!r} at {at}, {(~same).sum()} of {same.size} wrong, "
                          f"{self.where}")


def _near(a: Array, b: Array, allowed: Array) -> Array:
    with np.errstate(all="ignore"):
        x, y = np.clip(a.astype(np.float64), -_TOP, _TOP), np.clip(b.astype(np.float64), -_TOP, _TOP)
        if a.dtype == np.float64 and b.dtype == np.float64:
            x, y = a, b
        return np.asarray((x == y) | (np.isnan(a) & np.isnan(b)) | (np.abs(x - y) <= allowed))


def _scale(a: Array) -> float:
    return float(np.abs(a[np.isfinite(a)]).max(initial=0))


#: What is so near to each oracle is right, however far these are apart: of what nodes of the standard's do within nobody knows
#: how it rounds.
_ALIKE = 1e-5


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.allclose(a.astype(np.float64), b.astype(np.float64), 1e-4, 1e-5, equal_nan=True))


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _agree_on_sign(known: Sequence[Array]) -> Array:
    return np.logical_and.reduce([np.signbit(c) == np.signbit(known[-1]) for c in known])


def _keeps_signs(node: NodeProto) -> bool:
    """Whether each element of a node's output is one of its inputs': the sign of a zero is kept then."""
    op = find(node.op_type)
    return op is not None and exactly(node) and (op.kind in (PatternKind.INJECTIVE, PatternKind.BROADCAST) or node.op_type in (
        "Identity", "Where", "Dropout", "Neg"))


def reason(error: BaseException) -> str:
    """An error's text without what differs from case to case."""
    text = re.sub(r"'[^']*'", "'…'", str(error))
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", "[…]", text)
    return f"{type(error).__name__}: {re.sub(r'-?[0-9.]+(e-?[0-9]+)?', '_', text)[:150]}"

