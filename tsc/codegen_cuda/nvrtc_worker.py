"""One process of the build pool: compiles CUDA sources with NVRTC for its parent, so that a crash there is no crash here.

Run as `python -m tsc.codegen_cuda.nvrtc_worker`. It writes one JSON frame that says which NVRTC it has; then it answers each
request, a JSON frame, by a JSON frame {"status": 0 or NVRTC's code, "message": its name, "log": text} and a frame of the cubin
(empty where it failed).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cuda.bindings import nvrtc

from tsc.frames import read_frame, write_frame


def compile_source(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Compile {"name", "text", "headers": {name: text}, "flags": [...]}. Returns the answer and the cubin."""
    headers = request["headers"]
    status, program = nvrtc.nvrtcCreateProgram(
        request["text"].encode(), f"{request['name']}.cu".encode(), len(headers),
        [text.encode() for text in headers.values()], [name.encode() for name in headers])
    if status:
        return {"status": int(status), "message": status.name, "log": ""}, b""
    flags = [flag.encode() for flag in request["flags"]]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    log = _fetch(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace").rstrip("\0 \n")
    cubin = b"" if status else _fetch(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    nvrtc.nvrtcDestroyProgram(program)
    return {"status": int(status), "message": status.name, "log": log}, cubin


def _fetch(program: Any, size: Any, get: Any) -> bytes:
    status, length = size(program)
    content = bytes(length)
    if status or get(program, content)[0]:
        return b""
    return content


def main() -> None:
    """Serve requests until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _, major, minor = nvrtc.nvrtcVersion()
    write_frame(sink, json.dumps({"version": f"{major}.{minor}"}).encode())
    while (frame := read_frame(source)) is not None:
        answer, cubin = compile_source(json.loads(frame))
        write_frame(sink, json.dumps(answer).encode())
        write_frame(sink, cubin)


if __name__ == "__main__":
    main()
