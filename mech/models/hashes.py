"""SHA-256 of weights: of files, computed in full once and then remembered, and of tensors in memory.

    FOLDER/hashes/<SHA-256 of the file's path>.json    {"sha256": …, "stamp": {inode, size, times, sample}}

A remembered hash is used only while the file's stamp is unchanged: device, inode, size, times of the last change of
its contents and of its inode (which no program can set back), and the SHA-256 of 4 KiB out of every MiB. A damaged
memory file costs one full hash. A file of less than a MiB is hashed each time. A file that changed less than a second
ago is not remembered: a second change within one tick of the file system's clock would go unseen. Readers of the bytes
check the stamp again afterwards (`Hashed.still`).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SAMPLE, STRIDE = 4096, 1 << 20
SETTLED_NS = 1_000_000_000


@dataclass(frozen=True)
class Hashed:
    """A file, its SHA-256 in hexadecimal, and its stamp before it was read."""

    path: Path
    sha256: str
    stamp: dict[str, Any]

    def still(self) -> bool:
        """Whether the file's stamp, its sample apart, is unchanged; False where it is gone."""
        try:
            return _times(self.path).items() <= self.stamp.items()
        except OSError:
            return False


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def known_sha256(path: Path, memory: Path, *, full: bool = False) -> Hashed:
    """A file's SHA-256, from the memory where the file is unchanged since it was hashed.

    Args:
        path: the file.
        memory: folder of remembered hashes; made if missing, and not used if it cannot be written.
        full: hash every byte again.

    Raises:
        OSError: the file cannot be read, or changes while it is read.
    """
    started = time.time_ns()
    stamp = _stamp(path)
    full = full or stamp["size"] < STRIDE
    place = memory / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"
    if not full and (known := _remembered(place, stamp)) is not None:
        return Hashed(path, known, stamp)
    found = Hashed(path, file_sha256(path), stamp)
    if not found.still():
        raise OSError(f"{path} changes while it is read")
    if stamp["size"] < STRIDE or started - max(stamp["mtime_ns"], stamp["ctime_ns"]) < SETTLED_NS:
        return found
    with suppress(OSError):  # the memory only saves time
        memory.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({"path": str(path), "sha256": found.sha256, "stamp": stamp}))
        os.replace(temporary, place)
    return found


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors: names, types, shapes and bytes, in name order; tied ones count under the first name.

    Half a second for 135 million float32 parameters on one core.
    """
    distinct: dict[tuple[Any, ...], str] = {}
    for name in sorted(tensors):
        one = tensors[name]
        distinct.setdefault((one.data_ptr(), one.dtype, one.shape, one.stride()), name)
    names = sorted(distinct.values())
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # hashing releases the interpreter lock
        digests = list(pool.map(_tensor_sha256, (tensors[name] for name in names)))
    return hashlib.sha256(
        "".join(f"{d}  {n}\n" for d, n in zip(digests, names, strict=True)).encode()
    ).hexdigest()


def _tensor_sha256(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    content: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    digest.update(content)
    return digest.hexdigest()


def _times(path: Path) -> dict[str, int]:
    about = path.stat()
    return {
        "device": about.st_dev,
        "inode": about.st_ino,
        "size": about.st_size,
        "mtime_ns": about.st_mtime_ns,
        "ctime_ns": about.st_ctime_ns,
    }


def _stamp(path: Path) -> dict[str, Any]:
    stamp = _times(path)
    sample = hashlib.sha256()
    with path.open("rb") as file:
        for start in range(0, stamp["size"], STRIDE):
            file.seek(start)
            sample.update(file.read(SAMPLE))
    return {**stamp, "sample": sample.hexdigest()}


def _remembered(place: Path, stamp: dict[str, Any]) -> str | None:
    """The hash in a memory file of this stamp; None for a missing, other or damaged one."""
    try:
        entry = json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("stamp") != stamp:
        return None
    known = entry.get("sha256")
    return known if isinstance(known, str) and len(known) == 64 else None
