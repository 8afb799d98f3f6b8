"""A batch of different lengths, in float32: `python3 dev.py bench ragged [--model bert_base] [--requests 16] [--lengths 8 256]`.

Requests of random lengths, drawn log-uniformly, to a transformer (one of benchmarks/transformers.py). tsc runs them as they are
(`run_many`), each alone, and filled up to the longest with a mask (`padded`); ONNX Runtime padded and each alone. Each runtime
in its own process, interleaved, so many threads, medians of `--rounds` turns after one that warms up; what is computed for real
tokens must agree: tsc's with itself to the last bit, with padding and ONNX Runtime's within a tolerance.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import tsc
from benchmarks.minilm import cpu_name
from benchmarks.transformers import TRANSFORMERS
from tsc.bench_child import OPENERS
from tsc.frames import read_frame, write_frame
from tsc.workers import Child

Feeds = dict[str, NDArray[Any]]
#: How far results may be apart where they are summed up in other orders, as a share of the largest.
TOLERANCE = 1e-3
