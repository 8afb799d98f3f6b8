"""The CUDA driver API as a driver, through cuda.bindings. Import it only when a GPU is asked for (see `platform`).

Each device's primary context is used, so that memory and streams of other libraries in the process can be passed in and out.
Section names in comments are of the CUDA driver API's reference.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cuda.bindings import driver as cu
from numpy.typing import NDArray

from tsc.errors import InternalError, LaunchError
from tsc.runtime.drivers.cuda_api import (
    Known,
    call_driver,
    check_status,
    cluster_value,
    device_info,
    edge,
    encode_tensor_map,
    new_rows,
    node_params,
    set_nodes,
    start_driver,
)
from tsc.runtime.drivers.protocol import (
    ONE,
    ArchitectureError,
    DeviceInfo,
    Driver,
    Event,
    Function,
    Graph,
    GraphExec,
    Handle,
    Launch,
    LaunchTable,
    Memory,
    MemoryUse,
    Module,
    NoDriverError,
    OutOfMemoryError,
    Size3,
    Stream,
    TensorMap,
    check_arguments,
    check_contiguous,
    check_launch,
    check_span,
    check_tensor_map,
)
from tsc.runtime.memory import address

_KEEP_ALL = (1 << 64) - 1
_RESULT = cu.CUresult
_WRONG_ARCH = (_RESULT.CUDA_ERROR_NO_BINARY_FOR_GPU, _RESULT.CUDA_ERROR_UNSUPPORTED_PTX_VERSION)


class CudaPlatform:
    """The GPUs that the NVIDIA driver shows this process."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Their facts. Raises NoDriverError where there is no driver or no GPU, DriverVersionError where the driver is too
        old."""
        version = start_driver()
        count = call_driver("count the GPUs", cu.cuDeviceGetCount)
        return tuple(device_info(index, version) for index in range(count))

    def open(self, index: int = 0) -> Driver:
        """The GPU of that number."""
        devices = self.devices()
        if not 0 <= index < len(devices):
            raise NoDriverError(f"there is no GPU {index}; this process sees {len(devices)} of them")
        return CudaDriver(devices[index])


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Context:
    """A device's primary context, and the memory pools in it. Given back when neither the driver nor a handle needs it."""

    value: Any
    pools: list[Any] = field(default_factory=list)

    def give_back(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call, from any thread, without a complaint: nobody could hear it."""
        cu.cuCtxSetCurrent(self.value)
        call(*arguments)


class CudaDriver:
    """The Driver protocol over one GPU."""

    def __init__(self, info: DeviceInfo) -> None:
        self._info = info
        self._device = call_driver("open the GPU", cu.cuDeviceGet, info.index)
        context = _Context(call_driver("open the GPU's context", cu.cuDevicePrimaryCtxRetain, self._device))
        weakref.finalize(context, _leave, context.value, context.pools, self._device).atexit = False
        self._opened: _Context | None = context
        self._lock = threading.Lock()
        self._functions: dict[int, Known] = {}
        self._captures: dict[int, list[int]] = {}  # the driver's number of a capture -> its kernel nodes
        self._clusters: dict[int, Size3] = {}  # kernel node -> its cluster, where it has one
        self._default = Stream(0)

    @property
    def info(self) -> DeviceInfo:
        """The GPU."""
        return self._info

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """This GPU's memory."""
        return (2, self._info.index)

    @property
    def default_stream(self) -> Stream:
        """CUDA's legacy default stream."""
        return self._default

    def close(self) -> None:
        """Wait for all work, then give the context back, once no handle needs it."""
        if self._opened is not None:
            self.synchronize()
            self._opened = None

    @property
    def _context(self) -> _Context:
        if self._opened is None:
            raise InternalError("the driver is closed")
        return self._opened

    # ---- modules

    def load(self, binary: bytes, name: str) -> Module:
        """Load a cubin. Raises ArchitectureError where it is made for another GPU."""
        self._enter()
        status, module = cu.cuModuleLoadData(binary)
        if status in _WRONG_ARCH:
            raise ArchitectureError(f"module '{name}' has no code for {self._info.name} ({self._info.arch}); build it for that")
        check_status(status, f"load module '{name}'")
        handle = Module(int(module), name=name)
        handle.on_release(self._context.give_back, cu.cuModuleUnload, module)
        return handle

    def function(self, module: Module, name: str) -> Function:
        """The kernel called `name`."""
        self._enter()
        status, function = cu.cuModuleGetFunction(module.value, name.encode())
        if status == _RESULT.CUDA_ERROR_NOT_FOUND:
            raise LaunchError(f"module '{module.name}' has no kernel '{name}'")
        check_status(status, f"find kernel '{name}'")
        sizes: list[int] = []
        while True:
            status, _, size = cu.cuFuncGetParamInfo(function, len(sizes))
            if status != _RESULT.CUDA_SUCCESS:  # past the last parameter
                break
            sizes.append(int(size))
        self._functions[int(function)] = Known(tuple(sizes))
        return Function(int(function), module, name=name)

    # ---- memory

    def allocate(self, size: int, stream: Stream | None = None, last: Stream | None = None) -> Memory:
        """Device memory; what the pool keeps is given back before a lack of memory is reported."""
        self._enter()
        what = f"allocate {size} bytes on {self._info.name}"
        for is_second in (False, True):
            if stream is None:
                status, pointer = cu.cuMemAlloc(max(size, 1))
            else:
                status, pointer = cu.cuMemAllocFromPoolAsync(max(size, 1), self._own_pool(), stream.value)
            if is_second or status != _RESULT.CUDA_ERROR_OUT_OF_MEMORY:
                break
            self.trim()
        if status == _RESULT.CUDA_ERROR_OUT_OF_MEMORY:
            use = self.memory_use()
            raise OutOfMemoryError(f"cannot {what}: {use.free} of {use.total} bytes are free; use a smaller shape")
        check_status(status, what)
        last = None if stream is None else last or stream
        memory = Memory(int(pointer), last, size=size)
        if last is None:
            memory.on_release(self._context.give_back, cu.cuMemFree, int(pointer))
        else:
            memory.on_release(self._context.give_back, cu.cuMemFreeAsync, int(pointer), last.value)
        return memory

    def adopt(self, address: int, size: int, owner: object, writable: bool = True) -> Memory:
        """Somebody else's device memory."""
        return Memory(address, owner, size=size)

    def release(self, handle: Handle, stream: Stream | None = None) -> None:
        """Give `handle` back; memory of the pool after what is in `stream`, other memory once the device is done with it."""
        finalizer = handle.finalizer
        if finalizer is not None and stream is not None and isinstance(handle, Memory) and isinstance(handle.owner, Stream):
            if finalizer.detach() is not None:
                self._enter()
                call_driver("give memory back", cu.cuMemFreeAsync, handle.value, stream.value)
        elif finalizer is not None:
            finalizer()
        handle.owner = None

    def memory_use(self) -> MemoryUse:
        """What the device and the pool say."""
        self._enter()
        free, total = call_driver("ask for the free memory", cu.cuMemGetInfo)
        pools = self._context.pools
        if not pools:
            return MemoryUse(int(free), int(total), 0, 0)
        kind = cu.CUmemPool_attribute
        kinds = (kind.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, kind.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        reserved, used = (int(call_driver("ask the memory pool", cu.cuMemPoolGetAttribute, pools[0], kind)) for kind in kinds)
        return MemoryUse(int(free), int(total), reserved, used)

    def trim(self, keep: int = 0) -> None:
        """Shrink the pool."""
        self._enter()
        for pool in self._context.pools:
            call_driver("trim the memory pool", cu.cuMemPoolTrimTo, pool, keep)

    def host_array(self, size: int) -> NDArray[np.uint8]:
        """Page-locked memory, which is given back with the array and all its views."""
        self._enter()
        pointer = int(call_driver(f"allocate {size} bytes of page-locked memory", cu.cuMemHostAlloc, max(size, 1), 0))
        block = (ctypes.c_uint8 * max(size, 1)).from_address(pointer)
        weakref.finalize(block, self._context.give_back, cu.cuMemFreeHost, pointer).atexit = False
        return np.ctypeslib.as_array(block)[:size]

    def _own_pool(self) -> Any:
        with self._lock:
            pools = self._context.pools
            if not pools:
                properties = cu.CUmemPoolProps()
                properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                properties.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
                properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                properties.location.id = self._info.index
                pool = call_driver("make a memory pool", cu.cuMemPoolCreate, properties)
                threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                call_driver("keep the pool's memory", cu.cuMemPoolSetAttribute, pool, threshold, cu.cuuint64_t(_KEEP_ALL))
                pools.append(pool)
            return pools[0]

    # ---- streams and events

    def create_stream(self) -> Stream:
        """A stream that does not wait for the default stream."""
        self._enter()
        stream = call_driver("make a stream", cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        handle = Stream(int(stream))
        handle.on_release(self._context.give_back, cu.cuStreamDestroy, stream)
        return handle

    def wrap_stream(self, value: int, owner: object = None) -> Stream:
        """Somebody else's CUstream: 0 or 1 the legacy default stream, 2 the calling thread's."""
        return Stream(value, owner)

    def create_event(self, timing: bool = False) -> Event:
        """An event."""
        self._enter()
        flags = cu.CUevent_flags.CU_EVENT_DEFAULT if timing else cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = call_driver("make an event", cu.cuEventCreate, flags)
        handle = Event(int(event), timing=timing)
        handle.on_release(self._context.give_back, cu.cuEventDestroy, event)
        return handle

    def record(self, event: Event, stream: Stream) -> None:
        """cuEventRecord."""
        self._enter()
        call_driver("record an event", cu.cuEventRecord, event.value, stream.value)

    def wait(self, stream: Stream, event: Event) -> None:
        """cuStreamWaitEvent."""
        self._enter()
        call_driver("wait for an event", cu.cuStreamWaitEvent, stream.value, event.value, 0)

    def done(self, event: Event) -> bool:
        """cuEventQuery."""
        self._enter()
        (status,) = cu.cuEventQuery(event.value)
        if status == _RESULT.CUDA_ERROR_NOT_READY:
            return False
        check_status(status, "ask for an event")
        return True

    def elapsed(self, start: Event, stop: Event) -> float:
        """cuEventElapsedTime."""
        if not (start.timing and stop.timing):
            raise InternalError("elapsed times are between timing events only")
        self._enter()
        return float(call_driver("time", cu.cuEventElapsedTime, start.value, stop.value))

    def synchronize(self, what: Stream | Event | None = None) -> None:
        """Wait, and report what failed."""
        self._enter()
        match what:
            case Stream():
                call_driver("run what was queued", cu.cuStreamSynchronize, what.value)
            case Event():
                call_driver("run what was queued", cu.cuEventSynchronize, what.value)
            case None:
                call_driver("run what was queued", cu.cuCtxSynchronize)

    # ---- work

    def upload(self, target: Memory, source: NDArray[Any], stream: Stream, offset: int = 0) -> None:
        """cuMemcpyHtoDAsync: pageable memory is staged before it returns."""
        check_contiguous(source)
        check_span(target, offset, source.nbytes)
        if source.nbytes:
            self._enter()
            places = (target.value + offset, address(source))
            call_driver("copy to the GPU", cu.cuMemcpyHtoDAsync, *places, source.nbytes, stream.value)

    def download(self, target: NDArray[Any], source: Memory, stream: Stream, offset: int = 0) -> None:
        """cuMemcpyDtoHAsync."""
        check_contiguous(target)
        check_span(source, offset, target.nbytes)
        if target.nbytes:
            self._enter()
            places = (address(target), source.value + offset)
            call_driver("copy from the GPU", cu.cuMemcpyDtoHAsync, *places, target.nbytes, stream.value)

    def copy(self, target: Memory, source: Memory, size: int, stream: Stream, offsets: tuple[int, int] = (0, 0)) -> None:
        """cuMemcpyDtoDAsync."""
        check_span(target, offsets[0], size)
        check_span(source, offsets[1], size)
        if size:
            self._enter()
            places = (target.value + offsets[0], source.value + offsets[1])
            call_driver("copy within the GPU", cu.cuMemcpyDtoDAsync, *places, size, stream.value)

    def fill(self, target: Memory, byte: int, stream: Stream) -> None:
        """cuMemsetD8Async."""
        if target.size:
            self._enter()
            call_driver("fill memory", cu.cuMemsetD8Async, target.value, byte, target.size, stream.value)

    def tensor_map(self, what: TensorMap) -> bytes:
        """cuTensorMapEncodeTiled."""
        return encode_tensor_map(what, *check_tensor_map(what))

    def launch(self, launch: Launch, stream: Stream) -> None:
        """cuLaunchKernel, or cuLaunchKernelEx for clusters."""
        self._ready(launch)
        what = f"launch kernel '{launch.function.name}'"
        if launch.cluster == ONE:
            shape = (*launch.grid, *launch.block, launch.shared)
            call_driver(what, cu.cuLaunchKernel, launch.function.value, *shape, stream.value, launch.args.table, 0)
        else:
            config = cu.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
            config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
            config.sharedMemBytes, config.hStream = launch.shared, cu.CUstream(stream.value)
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value = cluster_value(launch.cluster)
            config.attrs, config.numAttrs = [attribute], 1
            call_driver(what, cu.cuLaunchKernelEx, config, launch.function.value, launch.args.table, 0)
        if self._captures:
            self._note_captured(launch, stream)

    def _ready(self, launch: Launch) -> None:
        """Check a launch, and allow its kernel the shared memory it asks for."""
        check_launch(launch, self._info)
        known = self._functions[launch.function.value]
        check_arguments(launch, known.sizes)
        self._enter()
        if launch.shared > known.shared:
            with known.lock:
                limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call_driver(f"give kernel '{launch.function.name}' {launch.shared} bytes of shared memory",
                      cu.cuFuncSetAttribute, launch.function.value, limit, launch.shared)
                known.shared = launch.shared

    def _enter(self) -> None:
        """Make the context current: other libraries, and other threads, have their own."""
        cu.cuCtxSetCurrent(self._context.value)

    # ---- graphs

    def begin_capture(self, stream: Stream) -> None:
        """cuStreamBeginCapture; other threads are not disturbed."""
        self._enter()
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call_driver("record a stream", cu.cuStreamBeginCapture, stream.value, mode)
        self._captures[self._capture_info(stream)[0]] = []

    def end_capture(self, stream: Stream) -> Graph:
        """cuStreamEndCapture."""
        self._enter()
        number, _ = self._capture_info(stream)
        kernels = self._captures.pop(number, [])
        return self._graph(call_driver("record a stream", cu.cuStreamEndCapture, stream.value), kernels)

    def build_graph(self, launches: Sequence[Launch], after: Sequence[Sequence[int]] | None = None) -> Graph:
        """cuGraphAddKernelNode for each launch."""
        self._enter()
        graph = call_driver("make a graph", cu.cuGraphCreate, 0)
        nodes: list[Any] = []
        for number, launch in enumerate(launches):
            self._ready(launch)
            before = [nodes[other] for other in after[number]] if after is not None else nodes[-1:]
            nodes.append(call_driver("add a kernel to a graph", cu.cuGraphAddKernelNode, graph, None, 0, node_params(launch)))
            if before:
                edges = [edge(launch.in_turn and after is None)] * len(before)
                call_driver("order the kernels of a graph", cu.cuGraphAddDependencies, graph, before, [nodes[-1]] * len(before),
                            edges, len(before))
            if launch.cluster != ONE:
                attribute = cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                call_driver("give a graph's kernel clusters", cu.cuGraphKernelNodeSetAttribute, nodes[-1], attribute,
                      cluster_value(launch.cluster))
                self._clusters[int(nodes[-1])] = launch.cluster
        return self._graph(graph, [int(node) for node in nodes])

    def instantiate(self, graph: Graph) -> GraphExec:
        """cuGraphInstantiate."""
        self._enter()
        made = call_driver("make a graph ready", cu.cuGraphInstantiate, graph.value, 0)
        handle = GraphExec(int(made), graph, kernels=graph.kernels)
        handle.on_release(self._context.give_back, cu.cuGraphExecDestroy, made)
        return handle

    def set_kernel(self, graph: GraphExec, kernel: int, launch: Launch) -> None:
        """cuGraphExecKernelNodeSetParams."""
        self._ready(launch)
        node = graph.kernels[kernel]
        cluster = self._clusters.get(node, ONE)
        if cluster != launch.cluster:
            raise LaunchError(f"the cluster {cluster} of a graph's kernel cannot become {launch.cluster}; build another")
        call_driver("change a graph's kernel", cu.cuGraphExecKernelNodeSetParams, graph.value, node, node_params(launch))

    def set_kernels(self, graph: GraphExec, table: LaunchTable, rows: Sequence[int]) -> None:
        """cuGraphExecKernelNodeSetParams for each."""
        for row in new_rows(table, self._functions, self._info):
            self._ready(table.launch(row))
        self._enter()
        set_nodes(graph, table, rows)

    def launch_graph(self, graph: GraphExec, stream: Stream) -> None:
        """cuGraphLaunch."""
        self._enter()
        call_driver("launch a graph", cu.cuGraphLaunch, graph.value, stream.value)

    def _graph(self, graph: Any, kernels: list[int]) -> Graph:
        handle = Graph(int(graph), kernels=tuple(kernels))
        handle.on_release(_drop_graph, self._context, graph, self._clusters, tuple(kernels))
        return handle

    def _capture_info(self, stream: Stream) -> tuple[int, list[Any]]:
        """The number of the capture that `stream` is in (0: none), and the nodes that what comes next would wait for."""
        active = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        status, number, _, nodes, *_ = call_driver("ask what is recorded", cu.cuStreamGetCaptureInfo, stream.value)
        return (0, []) if status == active else (int(number), list(nodes or ()))

    def _note_captured(self, launch: Launch, stream: Stream) -> None:
        number, nodes = self._capture_info(stream)
        if number in self._captures and nodes:  # after a launch its node is the only one
            self._captures[number].append(int(nodes[0]))
            if launch.cluster != ONE:
                self._clusters[int(nodes[0])] = launch.cluster



def _drop_graph(context: _Context, graph: Any, clusters: dict[int, Size3], kernels: tuple[int, ...]) -> None:
    context.give_back(cu.cuGraphDestroy, graph)
    for node in kernels:
        clusters.pop(node, None)


def _leave(context: Any, pools: list[Any], device: Any) -> None:
    cu.cuCtxSetCurrent(context)
    for pool in pools:
        cu.cuMemPoolDestroy(pool)
    cu.cuDevicePrimaryCtxRelease(device)
