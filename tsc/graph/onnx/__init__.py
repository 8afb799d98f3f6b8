"""From a file to a Graph: bytes, the standard's schema, functions in line, constants, dims of inputs."""
