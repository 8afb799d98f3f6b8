"""An interpreter of the loop IR, with threads: what loops mean, whoever prints them."""
