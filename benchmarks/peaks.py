"""What one core of this machine can do at most, measured (`peaks.c`): what rooflines are made of.

    python3 -m benchmarks.peaks
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tsc.codegen_c.build import find_compiler
from tsc.codegen_c.specs import host_spec
from tsc.config import read_environment

SOURCE = Path(__file__).with_suffix(".c")
_CALL = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
library.peak_gflops.restype = library.peak_gbytes.restype = ctypes.c_double
print(json.dumps({"gflops": library.peak_gflops(), "gbytes": library.peak_gbytes()}))
"""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one core: fp32 GFLOP/s by its widest FMA, and GB/s at which it reads what no cache holds."""

    gflops: float
    gbytes: float

    def milliseconds(self, flops: float, size: float) -> float:
        """The least time that so many operations and bytes can take."""
        return 1000 * max(flops / (self.gflops * 1e9), size / (self.gbytes * 1e9))

    def __str__(self) -> str:
        return f"{self.gflops:.1f} GFLOP/s, {self.gbytes:.1f} GB/s"


def peaks() -> Peaks:
    """Measured in a process of its own, which takes about two seconds."""
    compiler = find_compiler(read_environment().compiler)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peaks.so"
        width = f"-DVECTOR_BYTES={host_spec().vector_bytes or 16}"
        subprocess.run([*compiler.command, "-O3", "-march=native", "-ffp-contract=fast", width, "-shared", "-fPIC", str(SOURCE),
                        "-o", str(library)], check=True)
        done = subprocess.run([sys.executable, "-c", _CALL, str(library)], check=True, stdout=subprocess.PIPE, text=True)
    return Peaks(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(peaks())))
