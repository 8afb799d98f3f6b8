"""`tsc.InferenceSession`: a model behind the interface that users of ONNX Runtime know.

    import tsc as ort                                   # in place of `import onnxruntime as ort`
    session = ort.InferenceSession("model.onnx")        # or a Package, which needs no compiler
    outputs = session.run(None, {"ids": x})
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsc.errors import InputError
from tsc.runtime.context import forget_locks_after_fork
from tsc.runtime.executable import Executable
from tsc.runtime.files import write_atomically
from tsc.runtime.load import load
from tsc.runtime.memory import Array
from tsc.runtime.package import MAGIC, is_package
from tsc.runtime.plan import TensorSpec
from tsc.session.binding import IOBinding
from tsc.session.options import RunOptions, SessionOptions, get_available_providers
from tsc.session.profiling import Recorded
from tsc.session.values import OrtValue, type_name
from tsc.sym import SymExpr

#: What a model may be given as, besides an onnx.ModelProto.
Given = str | os.PathLike[str] | bytes


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, type (as "tensor(float)") and shape, whose sizes are numbers or, where they are symbolic,
    text."""

    name: str
    type: str
    shape: list[int | str]

    @staticmethod
    def of(spec: TensorSpec) -> NodeArg:
        """What ONNX Runtime would say of it."""
        return NodeArg(spec.name, type_name(spec.dtype), [_size(extent) for extent in spec.shape])


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model's file says of itself; a Package says its name alone."""

    graph_name: str = ""
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession:
    """A model, compiled once or loaded from a Package, that runs at any shape and from many threads at once.

    Args:
        path_or_bytes: An ONNX file or a Package, by path or as bytes.
        sess_options: Threads, profiling, fixed dims; see `SessionOptions`.
        providers: Those other than the ones that there are are left out with a warning, as in ONNX Runtime.
        provider_options: Kept for scripts; they change nothing.
        **compile_options: Those of `tsc.compile` (`dims`, `target`, `options`, `ops`), where a model is compiled.

    Raises what `tsc.compile` and `tsc.load` raise.
    """

    def __init__(self, path_or_bytes: Given | Any, sess_options: SessionOptions | None = None,
                 providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
                 provider_options: Sequence[Mapping[str, Any]] | None = None, **compile_options: Any) -> None:
        self._options = sess_options or SessionOptions()
        begin = time.perf_counter()
        _check_providers(providers or ())
        with _log_level(self._options.log_level):
            self._executable = _executable(path_or_bytes, self._options, compile_options)
        self._path = None if isinstance(path_or_bytes, bytes | bytearray | memoryview) else path_or_bytes
        self._recorded: Recorded | None = None
        if self._options.enable_profiling:
            self._recorded = Recorded(self._executable.launches, begin)
            self._recorded.add("model_loading", begin)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        forget_locks_after_fork(self)

    def after_fork(self) -> None:
        """In a child: the threads of the pool are not there, nor is who held the lock."""
        self._pool, self._lock = None, threading.Lock()

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def executable(self) -> Executable:
        """What runs underneath, with all that it can say: `explain`, `profile`, `peak_bytes`, `save`."""
        return self._executable

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in order."""
        return [NodeArg.of(spec) for spec in self._executable.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in order."""
        return [NodeArg.of(spec) for spec in self._executable.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: constants are part of what is compiled."""
        return []

    def get_session_options(self) -> SessionOptions:
        """The options that it was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """What it runs on."""
        return get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider: none."""
        return {name: {} for name in self.get_providers()}

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says of itself, read anew; nothing is kept of one that was given as bytes. Raises ModelError
        where it is no longer there."""
        if self._path is None:
            return ModelMetadata()
        if _is_package(self._path):
            return ModelMetadata(graph_name=os.path.splitext(os.path.basename(os.fspath(self._path)))[0])
        said: dict[str, Any] = importlib.import_module("tsc.graph.onnx.file").metadata(self._path)
        return ModelMetadata(**said)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
            run_options: RunOptions | None = None) -> list[Array]:
        """The named outputs (None: all) of arrays by input name. Raises as `Executable.run`."""
        if run_options is not None:
            _check_run(run_options)
        if self._recorded is not None:
            found: list[Array] = self._timed(lambda seconds: self._executable.run(output_names, input_feed, None, seconds))
            return found
        return self._executable.run(output_names, input_feed)

    def run_async(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
                  callback: Callable[[list[Array], Any, str], None], user_data: Any,
                  run_options: RunOptions | None = None) -> None:
        """Run in another thread, then call `callback(results, user_data, error)` there: `error` is "", or what went wrong, with
        no results. The arrays that are fed must stay as they are until then."""
        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # whoever waits is to hear of anything
                results, error = [], str(failure) or type(failure).__name__
            callback(results, user_data, error)

        self._workers().submit(work)

    def run_with_ort_values(self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue],
                            run_options: RunOptions | None = None) -> list[OrtValue]:
        """The same with values."""
        feeds = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(result) for result in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:
        """A binding for `run_with_iobinding`."""
        return IOBinding(self._executable)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with inputs and outputs where a binding says that they are. Raises as `Executable.run`, which writes them."""
        if run_options is not None:
            _check_run(run_options)
        if self._recorded is not None:
            self._timed(iobinding.run)
        else:
            iobinding.run()

    def end_profiling(self) -> str:
        """Write what was recorded since the session began; the file's name, "" where `enable_profiling` was not set. Raises
        PackageError or LaunchError where it cannot be written, as `Executable.save` does."""
        recorded, self._recorded = self._recorded, None
        return "" if recorded is None else recorded.write(self._options.profile_file_prefix)

    def _timed(self, run: Callable[[list[float]], Any]) -> Any:
        recorded, seconds, start = self._recorded, [0.0] * len(self._executable.launches), time.perf_counter()
        result = run(seconds)
        if recorded is not None:
            recorded.add_run(start, seconds)
        return result

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(thread_name_prefix="tsc-run")
            return self._pool


def _size(extent: SymExpr) -> int | str:
    number = extent.as_int()
    return str(extent) if number is None else number


def _check_run(options: RunOptions) -> None:
    if options.terminate:
        raise InputError("RunOptions: terminate is set, so that no run is begun; set it to False")


def _check_providers(asked: Sequence[str | tuple[str, Mapping[str, Any]]]) -> None:
    """Warn of providers that there are not. Raises InputError for what names none."""
    known = get_available_providers()
    for one in asked:
        name = one if isinstance(one, str) else one[0] if isinstance(one, tuple) and one else None
        if not isinstance(name, str):
            raise InputError(f"providers are names, or pairs of a name and options; {one!r} is neither")
        if name not in known:
            warnings.warn(f"the provider '{name}' is not among the available ones ({', '.join(map(repr, known))}) and left out",
                          UserWarning, stacklevel=3)


def _is_package(source: Any) -> bool:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source[:len(MAGIC)]) == MAGIC
    return isinstance(source, str | os.PathLike) and is_package(os.fspath(source))


def _executable(source: Any, options: SessionOptions, compile_options: dict[str, Any]) -> Executable:
    """The model, loaded or compiled."""
    if _is_package(source):
        given = [*compile_options, *(["a free dimension that is overridden"] if options.overridden_dims else [])]
        if given:
            raise InputError(f"a Package is compiled already and cannot heed {given[0]}; give it when the model is compiled")
        if isinstance(source, str | os.PathLike):
            return load(os.fspath(source), options.threads)
        with tempfile.TemporaryDirectory(prefix="tsc-session-") as folder:  # read whole; nothing of the file is kept
            path = Path(folder) / "model.tscpack"
            write_atomically(path, [source], durable=False)
            return load(path, options.threads)
    fixed = {name: (size, size) for name, size in options.overridden_dims.items()}
    dims = {**(compile_options.pop("dims", None) or {}), **fixed}
    made: Executable = importlib.import_module("tsc.pipeline").compile(
        source, dims=dims or None, threads=options.threads, **compile_options)
    return made


@contextmanager
def _log_level(level: int | None) -> Iterator[None]:
    """The log "tsc" at another level."""
    log = logging.getLogger("tsc")
    before = log.level
    if level is not None:
        log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)
