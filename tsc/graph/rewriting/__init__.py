"""Graph -> Graph: what is folded, cancelled, moved and merged before groups are formed."""
