"""What a child of a fuzzer may take."""

from __future__ import annotations

import resource

#: Bytes of address space beyond what the process has that it was forked from: a worker of the suite has had other tests.
MEMORY = 4 << 30


def limit_memory() -> None:
    """Hold this process to MEMORY more than it has, and let it leave no core behind."""
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
