"""DeviceSpec: the facts about a device that schedules and code depend on. A value; nothing here probes the machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tsc.errors import LaunchError


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What one multiprocessor (SM) of a GPU holds, and how many there are. Registers and shared memory are given out in units:
    `register_unit` registers a warp, `shared_unit` bytes a block, on top of `shared_reserved` bytes that every block costs.
    `warp_groups` of four warps may multiply together (wgmma)."""

    multiprocessors: int
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block: int
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    register_unit: int = 256
    shared_unit: int = 128
    shared_reserved: int = 1024
    warp_groups: bool = False

    def resident(self, threads: int, registers: int, shared: int) -> int:
        """How many blocks of so many threads, registers a thread and bytes of shared memory a multiprocessor holds at a time
        (CUDA's occupancy calculator); 0 where none fits."""
        warps = -(-threads // 32)
        each = -(-registers * 32 // self.register_unit) * self.register_unit * warps
        bytes_ = -(-(shared + self.shared_reserved) // self.shared_unit) * self.shared_unit
        return min(self.blocks_per_sm, self.threads_per_sm // (warps * 32), self.registers_per_sm // max(1, each),
                   self.shared_per_sm // bytes_)


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """How fast a `board` is at most: cycles a second at its highest `clock`, bytes a second of its `dram`. In one cycle its L2
    gives `l2` bytes (None: not documented) to all multiprocessors together; each of these issues `issue` instructions of warps,
    serves `shared` bytes of shared memory, multiplies and adds `fp32` pairs of floats, and on its tensor cores as many pairs as
    `tensor` says of each kind of instruction ("mma.f16", "mma.tf32", "wgmma.f16"), dense, with sums in fp32."""

    board: str
    clock: int
    dram: int
    l2: int | None
    fp32: int
    tensor: tuple[tuple[str, int], ...]
    shared: int = 128
    issue: int = 4


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device. `name` is what users write ("cpu-avx512"), `kind` chooses the back end.

    `vector_bytes` is the width of a vector register (0: elements are computed one by one), `registers` how many of them an
    instruction set has, `instr_tile` the register tile (rows, columns) of an fp32 micro-kernel, `l2_bytes` the cache a block
    should fit, `cpu_flags` what the machine must report before code for this device may run on it, `compile_flags` what selects
    it in gcc and clang; `gpu` what a GPU's multiprocessors hold (its `registers` are one thread's, its `instr_tile` one matrix
    instruction's), `speed` how fast it is at most. A chain of stages takes about `chain_rows` rows at a time, a panel is asked
    for `ahead` bytes ahead.

    What its code has beside scalars: `intrinsics` by name (`codegen_c/intrinsics.py`), the functions with a vector form as
    (function, dtype of the operands) in `vector_calls`, and `masks` for the loads and stores of some lanes of a vector.
    """

    name: str
    kind: str
    vector_bytes: int
    registers: int
    instr_tile: tuple[int, int]
    l2_bytes: int
    cpu_flags: tuple[str, ...] = ()
    compile_flags: tuple[str, ...] = ()
    gpu: GpuLimits | None = None
    speed: GpuSpeed | None = field(default=None, repr=False)  # no kernel depends on it
    chain_rows: int = 64
    ahead: int = 4096
    intrinsics: tuple[str, ...] = ()
    masks: bool = False
    vector_calls: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)

    @property
    def on_chip_bytes(self) -> int:
        """What a block can keep from stage to stage: a GPU's shared memory, half of the second-level cache of the smallest
        cores meant (1 MiB)."""
        return 1 << 19 if self.gpu is None else self.gpu.shared_per_block

    @property
    def scalar(self) -> DeviceSpec:
        """The same device without vectors and register tiles."""
        return replace(self, vector_bytes=0, instr_tile=(1, 1), intrinsics=(), masks=False)


def parse_target(text: str, table: dict[str, DeviceSpec], what: str = "") -> DeviceSpec:
    """The DeviceSpec called `text` among those that compute in `what` is asked for. Raises LaunchError naming them."""
    if text not in table:
        raise LaunchError(f"unknown target '{text}'{what}; known targets{what} are {', '.join(sorted(table))}")
    return table[text]
