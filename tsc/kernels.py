"""From Programs to kernels: schedule, lower and print one, from the cache where an equal one was compiled before."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from tsc import targets
from tsc.codegen_c.cache import CompiledCache, default_cache_dir, digest
from tsc.codegen_c.specs import machine_name
from tsc.config import Options, default_threads, read_environment
from tsc.errors import InputError, InternalError
from tsc.graph.fusion.to_te import LoweredGroup
from tsc.ir import Graph
from tsc.loop_ir.bounds import no_prover
from tsc.loop_ir.lower import settle
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.print import format_func
from tsc.ops.base import PatternKind
from tsc.plan.build import KernelCall
from tsc.plan.kernel import Code, Kernel, Refusal, buffers_of, interface_of, kernel_from_bytes, kernel_to_bytes
from tsc.poly import PatternMismatch
from tsc.poly.pattern import Wanted
from tsc.poly.proof.presburger import prover
from tsc.poly.schedule import ScheduledProgram, blame, schedule_program
from tsc.poly.scop import needs, unheld, unproved, with_checks
from tsc.poly.steps import Steps
from tsc.poly.tile import TileConfig, config_to_json
from tsc.runtime.cost import Rates
from tsc.sym import OversizeError, SymExpr
from tsc.target import DeviceSpec
from tsc.targets import Target
from tsc.te.compute import Fact, Program
from tsc.te.expr import Buffer
from tsc.te.factored.factor import NotFactored
from tsc.te.factored.factoring import Factoring, from_json, proposed, to_json
from tsc.te.passes.messages import messages_of, with_messages
from tsc.te.passes.share import share
from tsc.te.passes.widen import widened
from tsc.te.rows import independent_rows
from tsc.trace import Recorder
from tsc.tune.pool import pool_of
from tsc.tune.records import allowed, by_group
from tsc.tune.records import read as read_records
from tsc.tune.shipped import shipped
from tsc.validate import check_values


@dataclass(frozen=True, slots=True)
class Workshop:
    """What one compilation works with: how to compile, where traces go, the back end, the kernels compiled before, and those
    made or refused in this one, by key; `elsewhere` gives what another process made of a key, `pool` the configs that a group
    is compiled with, by its digest, and their rates (none: the pattern's own config). `orders` are those of this compilation,
    with the groups that they were for."""

    options: Options
    recorder: Recorder
    device: Target
    cache: CompiledCache
    made: dict[str, Kernel | Refusal] = field(default_factory=dict)
    elsewhere: Callable[[str], bytes | None] = lambda key: None
    pool: Callable[[str], Mapping[TileConfig, Rates]] = lambda group: {}
    orders: list[tuple[Order, LoweredGroup]] = field(default_factory=list)


def workshop(target: str, options: Options | None) -> Workshop:
    """The Workshop for a target, as the options and the environment say. Raises LaunchError for an unknown target."""
    environment, options = read_environment(), options or Options()
    cache = CompiledCache(options.cache_dir or environment.cache or default_cache_dir() if options.use_cache else None)
    device = targets.find(target, options.precision)
    return Workshop(options, Recorder(environment.dump, environment.override), device, cache,
                    pool=_pool(options, device.spec.name, target == "cpu"))


def _pool(options: Options, target: str, is_host: bool) -> Callable[[str], Mapping[TileConfig, Rates]]:
    """What records have for each group on a target: those of the file that were measured on this machine, or else on others, or
    else, where the target is whatever this machine is, those that ship for its class."""
    machine = machine_name()
    known = [] if options.records is None else allowed(read_records(options.records), options.reduction)
    given = [r for r in known if r.target == target]
    own, others = (by_group(r for r in given if (r.machine == machine) is here) for here in (True, False))
    units, ships = sorted({1, default_threads()}), options.shipped and is_host

    def pool(group: str) -> Mapping[TileConfig, Rates]:
        records = own.get(group) or others.get(group) or (shipped(machine, target, group) if ships else [])
        return pool_of(records, options.variants, units)

    return lru_cache(None)(pool)


@dataclass(frozen=True, slots=True)
class Order:
    """All that a kernel depends on. `constants` are the inputs that can be laid out at compile time; `wanted`: the patterns
    that will do; `factoring`: how reductions are to be cut; `configs`: those of its Variants (none: one of the pattern's own).
    `content` is a digest of the rest, `group` one of the Program for a target, whatever compiles it and how far sizes go."""

    program: Program
    kind: PatternKind
    constants: frozenset[str]
    device: Target
    content: str
    wanted: Wanted = Wanted.ANY
    factoring: Factoring | None = None
    configs: tuple[TileConfig, ...] = ()
    group: str = ""

    def key(self) -> str:
        """The cache's key of the kernel."""
        return digest("kernel", self.content, self.wanted.value, to_json(self.factoring), *map(config_to_json, self.configs))

    def symbol(self) -> str:
        """The kernel's name, whatever it was ordered for."""
        return f"{self.kind.value}_{self.content[:12]}"


def compile_program(lowered: LoweredGroup, graph: Graph, shop: Workshop, wanted: Wanted = Wanted.ANY) -> Kernel:
    """te.Program -> Kernel, from the cache where an equal program was compiled before. Raises PatternMismatch where no pattern
    fits, which is kept as well."""
    order = order_of(lowered, graph, shop, wanted)
    key, recorder = order.key(), shop.recorder
    recorder.record("te", order.symbol(), lambda: str(order.program))
    made = known(key, shop)
    if made is None:
        data = shop.elsewhere(key) or made_bytes(order, replace(recorder, decisions=[]))  # what is decided is kept with it
        if recorder.override_from is None:                          # what the user overrides is not for others to find
            shop.cache.put(key, data)
        made = shop.made[key] = kernel_from_bytes(data)
    if isinstance(made, Refusal):
        raise PatternMismatch(made.reason)
    shop.orders.append((order, lowered))
    return made.costing(rates_of(order, shop))


def order_of(lowered: LoweredGroup, graph: Graph, shop: Workshop, wanted: Wanted = Wanted.ANY) -> Order:
    """What to make of a Program whose inputs are values of `graph`."""
    constants = frozenset(b.name for b in lowered.program.inputs if lowered.values[b.name] in graph.constants and all(
        extent.substitute(lowered.sizes).as_int() is not None for extent in b.shape))  # some views follow from what inputs hold
    program = shop.device.algebra(general(lowered.program, shop.cache))
    content = digest(str(program), *sorted(constants), repr(shop.device.spec), code_fingerprint())
    spec = shop.device.spec
    group = digest("group", str(_endless(program)), *sorted(constants), spec.name,
                   *(spec.intrinsics if spec.gpu is not None else ()))
    chunk = shop.options.reduction_chunk
    factoring = proposed(program, chunk, shop.options.split_reductions) if chunk else None
    order = Order(program, lowered.kind, constants, shop.device, content, wanted, factoring, group=group)
    return order if factoring is not None else replace(order, configs=tuple(rates_of(order, shop)))


def _endless(program: Program) -> Program:
    """The Program whatever ends its sizes are declared to have: what is measured of it serves other ranges, too."""
    return replace(program, sizes=tuple(replace(size, lo=0, hi=None) for size in program.sizes),
                   facts=tuple(fact for fact in program.facts if fact.relation == "=="))


def rates_of(order: Order, shop: Workshop) -> Mapping[TileConfig, Rates]:
    """The configs of an order's Variants, with their Rates: from records or, where there are none, the back end's own."""
    device, found = shop.device, shop.pool(order.group)
    if not found and order.wanted is not Wanted.PLAIN:
        found = dict(islice(device.pool(order.kind, order.program, device.spec).items(), shop.options.variants))
    return found


def known(key: str, shop: Workshop) -> Kernel | Refusal | None:
    """What was made before, in this compilation or, unless something is dumped or overridden, in another."""
    recorder = shop.recorder
    data = shop.cache.get(key) if key not in shop.made and recorder.dump_to is recorder.override_from is None else None
    if data is not None:
        with suppress(ValueError, KeyError, TypeError):             # what is no Kernel counts as absent, and is replaced
            shop.made[key] = kernel_from_bytes(data)
    return shop.made.get(key)


def made_bytes(order: Order, recorder: Recorder) -> bytes:
    """The bytes of the kernel of an order, or of its refusal."""
    try:
        return kernel_to_bytes(make_kernel(order, order.symbol(), recorder))
    except PatternMismatch as mismatch:
        return kernel_to_bytes(Refusal(str(mismatch)))


def general(program: Program, cache: CompiledCache) -> Program:
    """The Program to compile in place of `program`: without ends of sizes that decide nothing, where accesses need them not,
    and with a check of each index that nothing holds within its extent."""
    wider = widened(program)
    found = wider if wider != program and not _unproved(wider, cache, exact=True) else program
    return with_checks(found) if _known("unheld", found, cache, lambda: " ".join(map(str, unheld(found)))) else found


def _unproved(program: Program, cache: CompiledCache, exact: bool = False) -> str:
    """What `unproved` says of a Program, or "", from the cache where it was asked before."""
    return _known(f"unproved {exact}", program, cache, lambda: unproved(program, exact) or "")


def _known(what: str, program: Program, cache: CompiledCache, ask: Callable[[], str]) -> str:
    """What `ask` says of a Program, from the cache where it was asked before."""
    key = digest(what, str(program), code_fingerprint())
    found = cache.get(key)
    if found is None:
        found = ask().encode()
        cache.put(key, found)
    return found.decode()


@dataclass(frozen=True, slots=True)
class CheckedLoops:
    """A kernel's loops for a device, which all checks accept, and the schedule with the `steps` that led to it, where they are
    asked for; `facts` are what they take for given of sizes, to which each call is held; `complaint` is why a check refused
    loops in vectors and tiles ("": none did)."""

    scheduled: ScheduledProgram
    func: Func
    spec: DeviceSpec
    steps: Steps | None
    facts: tuple[Fact, ...]
    complaint: str = ""


def make_kernel(order: Order, symbol: str, recorder: Recorder) -> Kernel:
    """te.Program -> Kernel, compiled anew. Raises as `checked_loops`."""
    order = replace(order, program=with_messages(order.program))
    given = recorder.override("factoring", symbol)
    factoring = order.factoring if given is None else _factoring(given, symbol)
    recorder.record("factoring", symbol, to_json(factoring))
    if factoring is not None:
        try:
            made = _in_steps(order, factoring.programs(order.program), symbol, recorder)
            return _kernel(order, {made[0].scheduled.config: made}, symbol, recorder)
        except (NotFactored, PatternMismatch) as refusal:
            if given is not None:
                raise InputError(f"the factoring given for kernel '{symbol}' cannot be used: {refusal}") from refusal
            recorder.decide("factoring", symbol, f"no reduction is cut: {refusal}")
    variants = _in_configs(order, symbol, recorder)
    if not variants:
        made = [checked_loops(replace(order, configs=()), symbol, recorder)]
        variants = {made[0].scheduled.config: made}
    return _kernel(order, variants, symbol, recorder)


def _in_steps(order: Order, programs: Sequence[Program], symbol: str, recorder: Recorder) -> list[CheckedLoops]:
    """The loops of a Variant that runs `programs` one after the other, the first in the order's config; where a product is cut,
    its chunks are to have register tiles. Raises as `checked_loops`."""
    if len(programs) == 1:
        return [checked_loops(replace(order, program=programs[0], wanted=of_kind(order.kind)), symbol, recorder)]
    wanted = [of_kind(order.kind) if k == 0 else Wanted.ANY for k in range(len(programs))]
    configs = [order.configs, *[()] * (len(programs) - 1)]
    return [checked_loops(replace(order, program=program, wanted=patterns, configs=own), f"{symbol}_{k}", recorder)
            for k, (program, patterns, own) in enumerate(zip(programs, wanted, configs), 1)]


def of_kind(kind: PatternKind) -> Wanted:
    """The patterns for a Program of which others could be made: a product's are to have register tiles."""
    return Wanted.TILED if kind is PatternKind.CONTRACTION else Wanted.ANY


def _in_configs(order: Order, symbol: str, recorder: Recorder) -> dict[TileConfig, list[CheckedLoops]]:
    """The loops of a Variant for each config of an order that fits its pattern, that no check complains of, and that reads
    buffers in the layouts in which the first one does."""
    variants: dict[TileConfig, list[CheckedLoops]] = {}
    outputs, layouts = {b.name for b in order.program.outputs}, set[Buffer]()
    for config in order.configs:
        name = f"{symbol}_v{len(variants)}" if variants else symbol
        begun = len(recorder.decisions)
        try:
            made = _in_config(replace(order, configs=(config,)), name, recorder)
            read = {*buffers_of([loops.func for loops in made], outputs)}
            layouts = layouts or read
            if read != layouts:
                raise PatternMismatch("it would read its buffers in other layouts than the first Variant")
        except (PatternMismatch, NotFactored, InternalError) as refusal:
            complaint = str(refusal)
        else:
            complaint = next((loops.complaint for loops in made if loops.complaint), "")
            if not complaint:
                own = config if config.chunk else made[0].scheduled.config
                variants[own] = made
                if own != config:  # its pattern is none that these configs are for
                    break
                continue
        del recorder.decisions[begun:]
        recorder.decide("config", symbol, f"there is no Variant of {config_to_json(config)}: {complaint}")
    return variants


def _in_config(order: Order, symbol: str, recorder: Recorder) -> list[CheckedLoops]:
    """The loops of a Variant in the order's config, one after the other where that cuts reductions. Raises as `checked_loops`,
    and NotFactored or PatternMismatch where they cannot be cut so."""
    chunk = order.configs[0].chunk
    if not chunk:
        return [checked_loops(order, symbol, recorder)]
    factoring = proposed(order.program, chunk, apart=True)
    if factoring is None:
        raise PatternMismatch(f"no reduction can be cut into chunks of {chunk}")
    return _in_steps(order, factoring.programs(order.program), symbol, recorder)


def _kernel(order: Order, variants: Mapping[TileConfig, Sequence[CheckedLoops]], symbol: str, recorder: Recorder) -> Kernel:
    """The Kernel whose Variants run loops one after the other. Raises PatternMismatch where they want different buffers."""
    # 1. what they take is the kernel's interface; what they leave for each other are temporaries
    made = [loops for variant in variants.values() for loops in variant]
    funcs = [[loops.func for loops in variant] for variant in variants.values()]
    outputs = {b.name for b in order.program.outputs}
    buffers = buffers_of(funcs[0], outputs)
    if any({*buffers_of(others, outputs)} != {*buffers} for others in funcs[1:]):
        raise PatternMismatch("the Variants of one kernel would read their buffers in different layouts")
    facts = (fact for loops in made for fact in loops.facts)
    interface = interface_of(funcs, buffers, outputs, facts, independent_rows(order.program))
    # 2. C, with the status codes that the Program has, whatever computes it
    messages = messages_of(order.program)
    sources = [_source(loops, messages, order.device, recorder) for loops in made]
    decided = tuple(f"{decision.stage}: {decision.reason}" for decision in recorder.decisions)  # for all of them, said once
    codes = tuple(Code(loops.scheduled.config, source, loops.scheduled.tree,
                       loops.scheduled.log + (decided if loops is made[-1] else ()), loops.complaint, loops.scheduled.work)
                  for loops, source in zip(made, sources))
    return Kernel(symbol, buffers, tuple(b.name for b in buffers if b.name in outputs),
                  tuple(name for name, _ in interface.sizes), interface, messages, codes, tuple(variants))


def _source(loops: CheckedLoops, messages: tuple[str, ...], device: Target, recorder: Recorder) -> str:
    """The C of loops, or what the user wrote in its place; status code i+1 stands for `messages[i]`."""
    name = loops.func.name
    with blame(loops.scheduled.overridden, name):
        source = recorder.override("c", name) or device.emit(
            replace(loops.func, messages=messages), loops.spec, loops.scheduled.config.prefetch)
    recorder.record("c", name, source)
    return source


def _factoring(text: str, symbol: str) -> Factoring | None:
    try:
        return from_json(text)
    except ValueError as error:
        raise InputError(f"the factoring given for kernel '{symbol}' is none: {error}") from error


def checked_loops(order: Order, symbol: str, recorder: Recorder, steps: Callable[[], Steps] | None = None) -> CheckedLoops:
    """te.Program -> loops. Raises PatternMismatch where no pattern fits, or an index that loops compute is beyond any
    expression, InternalError where checks fail.

    Where accesses stay within extents for a reason that none of the facts which were found says, what that takes of the sizes
    becomes one: each call is held to it.
    """
    try:
        return _checked(order, symbol, recorder, steps)
    except OversizeError as error:
        raise PatternMismatch(f"an index that its loops compute: {error}") from error
    except InternalError:
        held = needs(order.program)
        if not held:
            raise
        recorder.decide("facts", symbol, f"each call is held to {' and '.join(map(str, held))}, which accesses need")
        program = replace(order.program, facts=(*order.program.facts, *held))
        return _checked(replace(order, program=program), symbol, recorder, steps)


def _checked(order: Order, symbol: str, recorder: Recorder, steps: Callable[[], Steps] | None) -> CheckedLoops:
    """The loops of a Program whose facts suffice. Raises as `checked_loops`.

    Loops that a check refuses, wrong ones or only ones that it cannot see through, are our bug: whoever compiles gets plain
    loops in their place, held to the same checks, and a complaint to report.
    """
    begun, spec = len(recorder.decisions), order.device.spec
    try:
        return _checked_for(spec, order, symbol, recorder, steps)
    except InternalError as error:
        del recorder.decisions[begun:]                              # they are about loops that nobody runs
        with suppress(InternalError, PatternMismatch):
            alone = order if spec.gpu is None else replace(order, wanted=Wanted.PLAIN)  # not spread over threads
            plain = _checked_for(spec.scalar, alone, symbol, recorder, steps)
            recorder.decide("validate", symbol, f"element by element, since vectors and tiles were refused: {error}")
            return replace(plain, complaint=str(error))
        raise


def _checked_for(spec: DeviceSpec, order: Order, symbol: str, recorder: Recorder,
                 steps: Callable[[], Steps] | None) -> CheckedLoops:
    """The loops for one device. Raises as `checked_loops`."""
    program, device, seen = order.program, order.device, None if steps is None else steps()
    config = order.configs[0] if order.configs else None
    scheduled = schedule_program(                                   # te.Program       -> Func
        program, spec, config, recorder, symbol, order.constants, seen, order.wanted, device.forms)
    with blame(scheduled.overridden, symbol):
        proved = no_prover if scheduled.scop is None else prover(scheduled.scop.known)
        func = device.lower(scheduled.func, spec, scheduled.config, recorder, proved)  # Func -> Func
        if scheduled.scop is not None:                              # each instance once, in order, at every size
            for note in device.refine(scheduled.steps or scheduled.func, func, scheduled.scop, scheduled.edges):
                recorder.decide("validate", symbol, note)
            for note in check_values(program, func, scheduled.scop.program).notes():  # and it means what the Program means
                recorder.decide("validate", symbol, note)
        settled = settle(func)                                      # Func           -> Func, as it runs
        if settled is not func:
            recorder.record("loop_ir", symbol, lambda: format_func(settled))
    return CheckedLoops(scheduled, settled, spec, seen, program.facts)


def bind(lowered: LoweredGroup, kernel: Kernel, node: str, nodes: tuple[str, ...]) -> KernelCall:
    """Tie a kernel's buffers and sizes to this group's values and Dims; `node` is what errors name, `nodes` all it computes."""
    sizes = {name: lowered.sizes[name] for name in kernel.sizes}
    messages = tuple(m.format_map({**lowered.values, **sizes}) for m in kernel.messages)
    buffers = tuple(replace(b, shape=tuple(e.substitute(sizes) for e in b.shape)) for b in kernel.buffers)
    values, outputs = tuple(lowered.values[b.name] for b in buffers), tuple(lowered.values[b] for b in kernel.outputs)
    variants = tuple(variant.over(lambda e: e.substitute(sizes)) for variant in kernel.interface.variants)
    return KernelCall(
        kernel.symbol, values, outputs, buffers, tuple(sizes.values()), variants, node, messages, nodes)


def shared(lowered: Sequence[LoweredGroup], recorder: Recorder, cache: CompiledCache) -> list[LoweredGroup]:
    """The groups with one Program for all that are equal up to constants, where `te.share` finds that worth it
    and each access of that Program is proved to stay within extents at all its sizes."""
    found = share(group.program for group in lowered)
    counts = Counter(one.program for one in found.values())
    for program, count in counts.items():
        wrong = _unproved(program, cache)
        if not wrong:
            text = f"one kernel for {count} Programs equal up to constants:\n{program}"
        else:
            text = f"kernels of their own for {count} Programs equal up to constants: of one for all, {wrong}"
            found = {own: one for own, one in found.items() if one.program != program}
        recorder.decide("share", program.outputs[0].name, text)
    made = []
    for group in lowered:
        one = found.get(group.program)
        made.append(group if one is None else replace(
            group, program=one.program, sizes={**group.sizes, **{name: SymExpr.of(v) for name, v in one.values.items()}}))
    return made


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the compiler's own source: a changed compiler must not find an old compiler's kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
