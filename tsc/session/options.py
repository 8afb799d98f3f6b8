"""What ONNX Runtime's sessions may be told, under its names: what means something here is heeded, the rest is kept.

Names and defaults are those of its Python API (SessionOptions, RunOptions), so that a script runs with another import.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tsc.errors import InputError

#: Python's levels for ONNX Runtime's severities: verbose, info, warning, error, fatal.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
#: What of a model runs where.
CPU_PROVIDER = "CPUExecutionProvider"


class GraphOptimizationLevel(IntEnum):
    """How much of a graph is rewritten. Kept for scripts: all that is fused here is always fused."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether branches of a graph run side by side. Kept for scripts: the blocks of a kernel do, one kernel after another."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(slots=True)
class SessionOptions:
    """How a session is made.

    Heeded: `intra_op_num_threads` (how many cores a run may use; 0: all), `enable_profiling` and `profile_file_prefix` (each
    run's kernels are timed, and `end_profiling` writes them), `log_severity_level` (of the log "tsc" while the model is
    compiled), and free dimensions that are overridden. The rest has no counterpart here and changes nothing; a name that ONNX
    Runtime does not have either is refused, as any unknown attribute is.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    optimized_model_filepath: str = ""
    _entries: dict[str, str] = field(default_factory=dict, repr=False)
    _dims: dict[str, int] = field(default_factory=dict, repr=False)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the dim `name` to `size` when the model is compiled."""
        self._dims[name] = size

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added. Raises InputError where it was not."""
        return _entry(self._entries, key, "these SessionOptions have", "add_session_config_entry")

    @property
    def overridden_dims(self) -> dict[str, int]:
        """The sizes of dims that were fixed, by name."""
        return dict(self._dims)

    @property
    def threads(self) -> int | None:
        """How many cores a run may use, None for all. Raises InputError for a number that is none."""
        given = self.intra_op_num_threads
        if not isinstance(given, int) or given < 0:
            raise InputError(f"SessionOptions: intra_op_num_threads is {given!r}, expected a whole number, or 0 for all cores")
        return given or None

    @property
    def log_level(self) -> int | None:
        """The level of Python's logging that is asked for, None for none. Raises InputError for a severity that is none."""
        given = self.log_severity_level
        if not isinstance(given, int) or not -1 <= given < len(_LEVELS):
            most = len(_LEVELS) - 1
            raise InputError(f"SessionOptions: log_severity_level is {given!r}, expected -1 (the default) to {most}")
        return None if given == -1 else _LEVELS[given]


@dataclass(slots=True)
class RunOptions:
    """How one run is made. With `terminate` set it is refused; the rest changes nothing."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    _entries: dict[str, str] = field(default_factory=dict, repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added. Raises InputError where it was not."""
        return _entry(self._entries, key, "these RunOptions have", "add_run_config_entry")


def _entry(entries: Mapping[str, str], key: str, who: str, how: str) -> str:
    if key not in entries:
        raise InputError(f"{who} no config entry '{key}'; add it with {how}")
    return entries[key]


def get_available_providers() -> list[str]:
    """What sessions can run on."""
    return [CPU_PROVIDER]


def get_device() -> str:
    """What sessions run on if nothing else is asked for."""
    return "CPU"
