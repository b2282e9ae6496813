"""Messages between client and server: eight bytes of length, then JSON. Both ends are trusted."""

from __future__ import annotations

import json
import os
from typing import Any

HEADER = 8


def send(descriptor: int, value: Any) -> None:
    """Write one message whole; BrokenPipeError when the other end is gone."""
    write_all(descriptor, pack(value))


def pack(value: Any) -> bytes:
    """One message as bytes."""
    body = json.dumps(value).encode("ascii")
    return len(body).to_bytes(HEADER, "big") + body


def receive(descriptor: int) -> Any | None:
    """Read one message; None when the other end closed before it was whole."""
    head = read_exactly(descriptor, HEADER)
    body = None if head is None else read_exactly(descriptor, int.from_bytes(head, "big"))
    return None if body is None else json.loads(body)


def read_exactly(descriptor: int, size: int) -> bytes | None:
    """`size` bytes, or None at an early end."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_to_end(descriptor: int) -> bytes:
    """All bytes until the other end closes."""
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
