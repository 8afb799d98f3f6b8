"""The passes that give a kernel to a GPU: matrix instructions, pipelined copies, barriers, and the proof that they suffice."""
