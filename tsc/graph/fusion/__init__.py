"""Graph -> groups: anchors, what joins them and why not, and the te of a group."""
