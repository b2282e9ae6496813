"""A file's hash is remembered only while the file is the one that was hashed; a tensor's hash covers every bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mech.models import hashes
from mech.models.hashes import file_sha256, known_sha256, tensors_sha256

SIZE = 9 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Nine mebibytes that were written long ago."""
    path = tmp_path / "weights"
    path.write_bytes(random.Random(0).randbytes(SIZE))
    return path


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait a second after every write."""
    monkeypatch.setattr(hashes, "SETTLED_NS", 0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is hashed in full."""
    seen: list[Path] = []

    def count(path: Path) -> str:
        seen.append(path)
        return file_sha256(path)

    monkeypatch.setattr(hashes, "file_sha256", count)
    return seen


def overwrite(path: Path, start: int, content: bytes, *, keep_mtime: bool) -> None:
    """Change bytes in place; with `keep_mtime` as a careless copy or a faulty disk would."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)
    if keep_mtime:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_second_reading_is_out_of_memory_and_a_full_one_is_not(
    file: Path, tmp_path: Path, read: list[Path]
) -> None:
    first = known_sha256(file, tmp_path / "memory")
    assert first.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert known_sha256(file, tmp_path / "memory") == first and len(read) == 1
    assert known_sha256(file, tmp_path / "memory", full=True) == first and len(read) == 2


@pytest.mark.parametrize("keep_mtime", [True, False])
@pytest.mark.parametrize(
    ("start", "content"), [(2 << 20, bytes(4 << 20)), (5_000_001, b"?"), (SIZE - 1, b"?"), (0, b"?")]
)
def test_change_of_the_same_size_is_found(
    start: int, content: bytes, keep_mtime: bool, file: Path, tmp_path: Path, read: list[Path]
) -> None:
    """Four mebibytes of zeros, or one byte, with the time set back or not."""
    before = known_sha256(file, tmp_path / "memory")
    overwrite(file, start, content, keep_mtime=keep_mtime)
    assert not before.still()
    after = known_sha256(file, tmp_path / "memory")
    assert after.sha256 == hashlib.sha256(file.read_bytes()).hexdigest() != before.sha256
    assert len(read) == 2


def test_change_that_no_time_shows_is_found_by_the_sample_or_by_a_full_reading(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that damages what it holds changes no time at all."""
    times = dict(hashes._times(file))
    monkeypatch.setattr(hashes, "_times", lambda path: times)
    before = known_sha256(file, tmp_path / "memory").sha256
    overwrite(file, 5_000_001, b"?", keep_mtime=True)
    assert (
        known_sha256(file, tmp_path / "memory").sha256 == before
    )  # between two samples: this is what `full` is for
    assert known_sha256(file, tmp_path / "memory", full=True).sha256 != before
    overwrite(file, 2 << 20, bytes(4 << 20), keep_mtime=True)
    assert known_sha256(file, tmp_path / "memory").sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_other_file_of_the_same_bytes_and_place_is_hashed_again(
    file: Path, tmp_path: Path, read: list[Path]
) -> None:
    known_sha256(file, tmp_path / "memory")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    known_sha256(file, tmp_path / "memory")
    assert len(read) == 2


def test_file_just_written_is_not_remembered(
    file: Path, tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", 3_600_000_000_000)
    known_sha256(file, tmp_path / "memory")
    known_sha256(file, tmp_path / "memory")
    assert len(read) == 2 and not (tmp_path / "memory").exists()


def test_small_file_is_hashed_each_time(tmp_path: Path, read: list[Path]) -> None:
    (tmp_path / "small").write_text("a few bytes")
    for _ in range(2):
        known_sha256(tmp_path / "small", tmp_path / "memory")
    assert len(read) == 2 and not (tmp_path / "memory").exists()


def test_file_that_changes_while_it_is_hashed_is_an_error(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(path: Path) -> str:
        digest = file_sha256(path)
        overwrite(path, 0, b"?", keep_mtime=False)
        return digest

    monkeypatch.setattr(hashes, "file_sha256", meddle)
    with pytest.raises(OSError, match="changes while it is read"):
        known_sha256(file, tmp_path / "memory")


def test_memory_that_cannot_be_written_remembers_nothing(
    file: Path, tmp_path: Path, read: list[Path]
) -> None:
    (tmp_path / "memory").write_text("a file")
    for _ in range(2):
        known_sha256(file, tmp_path / "memory")
    assert len(read) == 2


DAMAGE: list[Callable[[dict[str, object]], bytes]] = [
    lambda entry: b"",
    lambda entry: b"[]",
    lambda entry: b"null",
    lambda entry: b"\xff\xfe",
    lambda entry: b"[" * 100_000,
    lambda entry: json.dumps({**entry, "sha256": 3}).encode(),
    lambda entry: json.dumps({**entry, "sha256": "short"}).encode(),
    lambda entry: json.dumps({**entry, "stamp": None}).encode(),
    lambda entry: json.dumps({**entry, "stamp": [1]}).encode(),
    lambda entry: json.dumps(entry).encode()[:-9],
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_memory_costs_one_reading(
    damage: Callable[[dict[str, object]], bytes], file: Path, tmp_path: Path, read: list[Path]
) -> None:
    first = known_sha256(file, tmp_path / "memory")
    (entry,) = (tmp_path / "memory").glob("*.json")
    entry.write_bytes(damage(json.loads(entry.read_text())))
    assert known_sha256(file, tmp_path / "memory") == first
    assert known_sha256(file, tmp_path / "memory") == first
    assert len(read) == 2


def test_tensors_hash_covers_names_types_shapes_and_bits() -> None:
    tensor = torch.arange(6, dtype=torch.float32)
    base = tensors_sha256({"a": tensor, "b": torch.ones(())})
    assert base == tensors_sha256({"b": torch.ones(()), "a": tensor.clone()})
    flipped = tensor.clone()
    flipped.view(torch.int32)[3] ^= 1
    others = [
        {"a": flipped, "b": torch.ones(())},
        {"c": tensor, "b": torch.ones(())},
        {"a": tensor.reshape(2, 3), "b": torch.ones(())},
        {"a": tensor.view(torch.int32), "b": torch.ones(())},
        {"a": tensor},
    ]
    assert len({base, *(tensors_sha256(other) for other in others)}) == 1 + len(others)
    assert tensors_sha256({"x": torch.ones(2, dtype=torch.bfloat16)}) != tensors_sha256({"x": torch.ones(2)})


def test_tied_tensors_count_once_and_views_are_read_in_order() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert tensors_sha256({"a": tensor, "b": tensor}) == tensors_sha256({"a": tensor})
    assert tensors_sha256({"a": tensor.T}) == tensors_sha256({"a": tensor.T.contiguous()})
