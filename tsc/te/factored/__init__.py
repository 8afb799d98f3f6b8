"""Reductions cut over declared monoids: algebra, no scheduling."""
