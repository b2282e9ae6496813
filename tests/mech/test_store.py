"""An entry is found by what it was computed from, whole, or refused with its name; it is never merely used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mech.engine.store import Store
from mech.errors import InputError

IDENTITY = {"model_sha256": "ab" * 32, "dtype": "torch.float32"}
ABOUT = {"tokens": "t1", "intervention": "clean"}
TENSORS = {
    "z": torch.arange(12.0).reshape(3, 4)[:, ::2],  # not contiguous
    "flag": torch.tensor([True, False]),
    "n": torch.tensor(3),
    "none": torch.empty(0, 4),
    "wide": torch.tensor([1 / 3], dtype=torch.float64),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kept", IDENTITY)


def test_an_entry_comes_back_bit_for_bit(store: Store) -> None:
    assert store.get("run", ABOUT) is None
    store.put("run", ABOUT, TENSORS)
    found = store.get("run", ABOUT)
    assert found is not None and set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype


def test_an_entry_of_nothing_is_an_entry(store: Store) -> None:
    store.put("run", ABOUT, {})
    assert store.get("run", ABOUT) == {}


def test_putting_again_replaces_and_leaves_nothing_beside(store: Store) -> None:
    store.put("run", ABOUT, {"z": torch.zeros(1)})
    store.put("run", ABOUT, {"z": torch.ones(2)})
    found = store.get("run", ABOUT)
    assert found is not None and torch.equal(found["z"], torch.ones(2))
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == [
        store.path("run", ABOUT).name
    ]


def test_every_part_of_the_question_is_part_of_the_name(store: Store) -> None:
    store.put("run", ABOUT, TENSORS)
    assert store.get("prefix cache", ABOUT) is None
    for name in ABOUT:
        assert store.get("run", {**ABOUT, name: "other"}) is None
    for name in IDENTITY:
        assert Store(store.folder, {**IDENTITY, name: "cd" * 32}).get("run", ABOUT) is None


def test_a_foreign_entry_under_our_name_is_refused_by_name(store: Store) -> None:
    """Two models whose hashes begin alike share a folder; a copied or renamed file lies where another belongs."""
    near = Store(store.folder, {**IDENTITY, "model_sha256": IDENTITY["model_sha256"][:16] + "0" * 48})
    for other, about, differs in (
        (near, ABOUT, "model_sha256"),
        (store, {**ABOUT, "tokens": "t2"}, "tokens"),
    ):
        other.put("run", about, TENSORS)
        path = store.path("run", ABOUT)
        shutil.move(other.path("run", about), path)
        with pytest.raises(InputError, match=rf"{path.name} is stale or foreign \(its {differs} differ"):
            store.get("run", ABOUT)
        path.unlink()


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_torn_entry_is_refused_by_name(left: int, store: Store) -> None:
    store.put("run", ABOUT, TENSORS)
    path = store.path("run", ABOUT)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(InputError, match=rf"{path.name} cannot be read"):
        store.get("run", ABOUT)


def test_an_entry_that_is_no_file_is_refused_by_name(store: Store) -> None:
    path = store.path("run", ABOUT)
    path.mkdir(parents=True)
    with pytest.raises(InputError, match=rf"{path.name} cannot be read"):
        store.get("run", ABOUT)
    with pytest.raises(InputError, match="cannot be written"):
        store.put("run", ABOUT, TENSORS)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "a temporary file was left behind"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        store = Store(folder, IDENTITY)
        assert store.get("run", ABOUT) is None
        with pytest.raises(InputError, match=r"cache folder .* cannot be written"):
            store.put("run", ABOUT, TENSORS)


def test_a_full_disk_is_one_sentence_and_leaves_the_old_entry(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("run", ABOUT, {"z": torch.zeros(1)})

    def full(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mech.engine.store.save_file", full)
    with pytest.raises(InputError, match="No space left"):
        store.put("run", ABOUT, TENSORS)
    found = store.get("run", ABOUT)
    assert found is not None and torch.equal(found["z"], torch.zeros(1))
    assert len([path for path in store.folder.rglob("*") if path.is_file()]) == 1
