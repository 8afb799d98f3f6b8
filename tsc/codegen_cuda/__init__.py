"""The CUDA back end: device headers, their emulator, and how sources become cubins with neither driver nor GPU."""
