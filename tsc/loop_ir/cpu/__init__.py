"""The passes that give a kernel to a CPU: register tiles and vectors, with what they may do and what is proved of them."""
