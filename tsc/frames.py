"""Frames: how a process talks with those that work for it. 8 bytes of length (little endian), then the content."""

from __future__ import annotations

from typing import IO


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame, or None where the stream ends, within a frame too."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    length = int.from_bytes(head, "little")
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Send one frame at once."""
    stream.write(len(body).to_bytes(8, "little") + body)
    stream.flush()
