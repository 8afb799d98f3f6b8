"""The tensor DSL: tensors defined element by element over named axes, with declared monoids and symbolic sizes.

    from tsc import te
    M, N, K = te.dim("M"), te.dim("N"), te.dim("K", divisor=8)
    a, b = te.placeholder((M, K), "float32", "a"), te.placeholder((K, N), "float32", "b")
    k = te.reduce_axis(K, "k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    y = te.compute((M, N), lambda i, j: te.maximum(c[i, j], 0.0), "y")
    kernel = tsc.build(y)                        # an Executable for every M, N and K
    kernel.run(None, {"a": ..., "b": ...})

The names are those of TVM's te and of Tensor Comprehensions. Below them stand the Programs that the compiler schedules
(`te/compute.py`, `te/expr.py`) and a NumPy evaluator, their oracle.
"""

from tsc.te.dsl.maths import (
    all_of,
    any_of,
    cast,
    ceil,
    cos,
    erf,
    exp,
    floor,
    log,
    max,
    maximum,
    min,
    minimum,
    prod,
    reduce,
    sin,
    sqrt,
    sum,
    tanh,
    where,
)
from tsc.te.dsl.scalar import Scalar
from tsc.te.dsl.tensor import Reduction, Tensor, compute, constant, dim, placeholder, reduce_axis, scan, state

__all__ = [
    "Reduction", "Scalar", "Tensor", "all_of", "any_of", "cast", "ceil", "compute", "constant", "cos", "dim", "erf", "exp",
    "floor", "log", "max", "maximum", "min", "minimum", "placeholder", "prod", "reduce", "reduce_axis", "scan", "sin", "sqrt",
    "state", "sum", "tanh", "where",
]
