"""Loops of warps and threads: taken apart, proved independent, and joined into one nest a block."""
