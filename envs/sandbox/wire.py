"""Messages between client and server: eight bytes of length, then JSON. Both ends are trusted."""

from __future__ import annotations

import json
import os
import select
import time
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
        try:
            part = os.read(descriptor, min(size, 1 << 20))
        except ConnectionResetError:  # closed before it read all that was written to it
            return None
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


def write_in_time(descriptor: int, data: bytes, seconds: float) -> bool:
    """Write all of it to a pipe, or what its reader takes in so many seconds; whether it was all."""
    deadline = time.monotonic() + seconds
    os.set_blocking(descriptor, False)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    view = memoryview(data)
    while view:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if poll.poll(left * 1000):
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:  # less room than a whole piece takes
                time.sleep(0.001)
    return True
