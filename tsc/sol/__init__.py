"""Speed of light: how fast a GPU could run a Variant at most, by counting what its blocks do."""
