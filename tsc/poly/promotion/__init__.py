"""Buffers that live within a tile, copies of operands, and how they are laid out."""
