"""The CUDA driver API as `cuda` uses it: calls that raise, the structs of launches, and what devices say of themselves."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from tsc.errors import LaunchError
from tsc.runtime.drivers.protocol import (
    DeviceInfo,
    DriverVersionError,
    GraphExec,
    Launch,
    LaunchTable,
    NoDriverError,
    OutOfMemoryError,
    Size3,
    TensorMap,
)
from tsc.runtime.memory import address

#: The oldest driver that runs what the NVRTC of the [cuda] extra makes, as cuDriverGetVersion says it.
OLDEST_DRIVER = 13000
_RESULT = cu.CUresult
_ATTRIBUTE = cu.CUdevice_attribute
_TENSOR_MAP_BYTES = 128
_Pointer, _Int, _U32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
_EncodeTiled = ctypes.CFUNCTYPE(_Int, _Pointer, _Int, _U32, *[_Pointer] * 5, *[_Int] * 4)

_PLAIN_SHARED = 48 << 10  # dynamic shared memory above this must be asked for
_SetParams = ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer, _Pointer)
#: CUDA_KERNEL_NODE_PARAMS_v2.
_NODE = np.dtype([("function", "<u8"), ("grid", "<u4", 3), ("block", "<u4", 3), ("shared", "<u4"), ("unused", "<u4"),
                  ("arguments", "<u8"), ("extra", "<u8"), ("kernel", "<u8"), ("context", "<u8")])


@dataclass(slots=True)
class Known:
    """What is remembered of a kernel: its parameters' sizes, and the dynamic shared memory it is allowed."""

    sizes: tuple[int, ...]
    shared: int = _PLAIN_SHARED
    lock: threading.Lock = field(default_factory=threading.Lock)


def start_driver() -> int:
    """Start the driver. Returns its version."""
    try:
        (status,) = cu.cuInit(0)
        version = int(call_driver("ask for the driver's version", cu.cuDriverGetVersion))
    except (RuntimeError, OSError) as error:  # the binding did not find libcuda, or not what it needs in it
        raise NoDriverError(f"no NVIDIA driver was found ({str(error).splitlines()[0]}); install one, or use an emulated "
                            "target such as 'emu:sm_80'") from error
    if version < OLDEST_DRIVER:
        raise DriverVersionError(f"the NVIDIA driver knows CUDA {version // 1000}.{version % 1000 // 10}; "
                                 f"{OLDEST_DRIVER // 1000}.{OLDEST_DRIVER % 1000 // 10} is the least: install a newer driver")
    if status == _RESULT.CUDA_ERROR_NO_DEVICE:
        raise NoDriverError("the NVIDIA driver shows this process no GPU (CUDA_VISIBLE_DEVICES may hide it)")
    check_status(status, "start the driver")
    return version


def device_info(index: int, version: int) -> DeviceInfo:
    device = call_driver("open the GPU", cu.cuDeviceGet, index)

    def fact(which: Any) -> int:
        return int(call_driver("ask the GPU for its facts", cu.cuDeviceGetAttribute, which, device))

    major, minor = (fact(which) for which in (
        _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    name = call_driver("ask the GPU for its name", cu.cuDeviceGetName, 128, device)
    return DeviceInfo(
        index, name.split(b"\0")[0].decode(), f"sm_{major}{minor}", fact(_ATTRIBUTE.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        int(call_driver("ask the GPU for its memory", cu.cuDeviceTotalMem, device)),
        fact(_ATTRIBUTE.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        fact(_ATTRIBUTE.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        (version // 1000, version % 1000 // 10))


def encode_tensor_map(what: TensorMap, dtype: int, swizzle: int) -> bytes:
    """cuTensorMapEncodeTiled, called without its binding: the binding's object for the result is not always at a multiple of 64
    bytes, which the driver demands."""
    entry, _ = call_driver("find cuTensorMapEncodeTiled", cu.cuGetProcAddress, b"cuTensorMapEncodeTiled", 12000, 0)
    rank = len(what.shape)
    place = ctypes.create_string_buffer(_TENSOR_MAP_BYTES + 64)
    target = ctypes.addressof(place) + 63 & ~63
    status = _EncodeTiled(int(entry))(
        target, dtype, rank, what.memory.value + what.offset, (ctypes.c_uint64 * 5)(*what.shape),
        (ctypes.c_uint64 * 5)(*what.strides), (ctypes.c_uint32 * 5)(*what.box), (ctypes.c_uint32 * 5)(*[1] * rank),
        int(cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE), swizzle,
        int(cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    check_status(_RESULT(status), "make a tensor map")
    return ctypes.string_at(target, _TENSOR_MAP_BYTES)


def call_driver(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver. Returns what comes after the status: nothing, one thing or a tuple. Raises as `_check` does."""
    status, *results = call(*arguments)
    if status != _RESULT.CUDA_SUCCESS:
        check_status(status, what)
    return results[0] if len(results) == 1 else tuple(results)


def check_status(status: Any, what: str) -> None:
    if status == _RESULT.CUDA_SUCCESS:
        return
    known, text = cu.cuGetErrorString(status)
    reason = text.decode() if known == _RESULT.CUDA_SUCCESS and text else "no further word"
    error = OutOfMemoryError if status == _RESULT.CUDA_ERROR_OUT_OF_MEMORY else LaunchError
    raise error(f"the GPU could not {what}: {reason} ({getattr(status, 'name', status)})")


def edge(in_turn: bool) -> Any:
    """What orders two kernels of a graph: the later one after the other's end, or when it lets it begin (programmatic dependent
    launch)."""
    made = cu.CUgraphEdgeData()
    if in_turn:
        made.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        made.type = int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return made


def node_params(launch: Launch) -> Any:
    made = cu.CUDA_KERNEL_NODE_PARAMS()
    made.func = cu.CUfunction(launch.function.value)
    made.gridDimX, made.gridDimY, made.gridDimZ = launch.grid
    made.blockDimX, made.blockDimY, made.blockDimZ = launch.block
    made.sharedMemBytes = launch.shared
    made.kernelParams = launch.args.table
    return made


def new_rows(table: LaunchTable, known: Mapping[int, Known], info: DeviceInfo) -> list[int]:
    """The rows that have to be looked at before they are set: of functions whose parameters have other sizes, or that may use
    less shared memory than they are to have, and those beyond what a device can run."""
    beyond = (table.blocks >= 1 << 31) | (table.threads > 1024) | (table.shared > info.shared_per_block)
    rows = {function.value: row for row, function in enumerate(table.functions)}
    counts, shared = np.diff(table.first).tolist(), table.shared.tolist()
    unlike = [row for number, row in rows.items()
              if known[number].sizes != (8,) * counts[row] or known[number].shared < shared[row]]
    return unlike + beyond.nonzero()[0].tolist()


def set_nodes(graph: GraphExec, table: LaunchTable, rows: Sequence[int]) -> None:
    """cuGraphExecKernelNodeSetParams for rows of a table, called without its binding, whose objects cost more than the call."""
    pointers = address(table.values) + 8 * np.arange(max(1, len(table.values)))
    params = np.zeros(len(table), _NODE)
    params["function"] = [function.value for function in table.functions]
    params["grid"], params["block"] = 1, 1
    params["grid"][:, 0], params["block"][:, 0], params["shared"] = table.blocks, table.threads, table.shared
    params["arguments"] = address(pointers) + 8 * table.first[:-1]
    call, begin = _set_params(), address(params)
    for row in rows:
        status = call(graph.value, graph.kernels[row], begin + row * _NODE.itemsize)
        if status:
            check_status(_RESULT(status), "change a graph's kernel")


@cache
def _set_params() -> Callable[[int, int, int], int]:
    name = b"cuGraphExecKernelNodeSetParams"
    entry, _ = call_driver(f"find {name.decode()}", cu.cuGetProcAddress, name, 12000, 0)
    return _SetParams(int(entry))


def cluster_value(cluster: Size3) -> Any:
    value = cu.CUkernelNodeAttrValue()  # a CUlaunchAttributeValue too
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster
    return value
