"""GGUF checkpoints: their metadata, and their conversion to a plain folder.

De-quantising is slow, so it is done once:

    GGUF file --(weights: transformers, float32; tokenizer: mech.models.tokenizers)-->
        cache/<sha256, converter version, transformers version, pre-tokenizer if the user gave it>/
            model.safetensors, config.json, tokenizer files, conversion.json

The folder is written under another name, synced to disk and renamed when complete, so a killed conversion is never
read; `conversion.json` has the SHA-256 of every file and of the tensors, and a damaged folder is converted again. The
header's format is that of the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import copy
import json
import logging
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from mech.errors import InputError
from mech.models.hashes import Hashed, file_sha256, known_sha256, tensors_sha256
from mech.models.tokenizers import PROBE, from_gguf, ids_of, settle

logger = logging.getLogger(__name__)

CONVERTER_VERSION = 2
"""To be raised when conversions change: cached folders of another version are not used."""

RECORD = "conversion.json"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VOCABULARY = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "token_type"))
_LONGEST_RECORD = 1 << 20


@dataclass(frozen=True)
class Converted:
    """A converted checkpoint with verified files.

    Attributes:
        folder: for transformers to read.
        files: every file in it, with its SHA-256.
        tensors_sha256: `mech.models.hashes.tensors_sha256` of the float32 model.
    """

    folder: Path
    files: tuple[Hashed, ...]
    tensors_sha256: str


def read_metadata(path: Path, arrays: Collection[str] = ()) -> dict[str, Any]:
    """The scalar and string entries of a GGUF header, and the named arrays.

    Raises:
        InputError: the file cannot be read, is not GGUF, or ends inside its header.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse_header(data, arrays)
    except OSError as error:
        raise InputError(f"The GGUF file '{path}' cannot be read: {error.strerror or error}.") from error
    except (struct.error, ValueError, KeyError) as error:
        raise InputError(f"'{path}' is not a complete GGUF file: download it again.") from error


def _parse_header(data: mmap.mmap, arrays: Collection[str]) -> dict[str, Any]:
    offset = 0

    def take(form: str) -> Any:
        nonlocal offset
        (value,) = struct.unpack_from("<" + form, data, offset)
        offset += struct.calcsize("<" + form)
        return value

    def text(errors: str = "replace") -> str:
        nonlocal offset
        length = take("Q")
        value = data[offset : offset + length]
        if len(value) != length:
            raise ValueError("the header ends inside a string")
        offset += length
        return value.decode("utf-8", errors)

    if data[:4] != b"GGUF":
        raise ValueError("no GGUF magic")
    offset = 4
    if take("I") not in (2, 3):
        raise ValueError("unknown GGUF version")
    take("Q")  # number of tensors
    entries: dict[str, Any] = {}
    for _ in range(take("Q")):
        key, kind = text(), take("I")
        if kind == _STRING:
            entries[key] = text()
        elif kind == _ARRAY:
            element, count = take("I"), take("Q")
            if key in arrays:
                entries[key] = [
                    text("strict") if element == _STRING else take(_SCALARS[element]) for _ in range(count)
                ]
            elif element == _STRING:
                for _ in range(count):
                    offset += 8 + int(struct.unpack_from("<Q", data, offset)[0])
            else:
                offset += count * struct.calcsize("<" + _SCALARS[element])
        else:
            entries[key] = take(_SCALARS[kind])
    return entries


def cached_folder(
    path: Path, sha256: str, cache_dir: Path, *, pre: str | None = None, full: bool = False
) -> Converted:
    """The plain checkpoint folder of a GGUF file, converted now if the cache has no undamaged one.

    Of two processes that need the same file, the second waits for the first.

    Args:
        path: the GGUF file.
        sha256: its `file_sha256`, the key.
        cache_dir: folder of converted folders; created if missing.
        pre: the pre-tokenizer's name if the user gave it.
        full: hash every byte of the converted files again.

    Raises:
        InputError: the cache folder cannot be written, the disk is full, the file cannot be de-quantised, or its
            tokenizer is not supported.
    """
    key = f"gguf-{sha256[:16]}-c{CONVERTER_VERSION}-transformers{version('transformers')}"
    final = cache_dir / (key if pre is None else f"{key}-pre-{pre}")
    memory = cache_dir / "hashes"
    try:
        found, _ = _examine(final, sha256, memory, full)
        if found is not None:
            return found
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir / f"{final.name}.lock"):
            found, damage = _examine(final, sha256, memory, full)
            if found is None:
                if final.exists():
                    logger.warning("the converted checkpoint %s is made again: %s", final, damage)
                _convert_into(path, sha256, final, pre)
                found, damage = _examine(final, sha256, memory, full=True)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"The converted checkpoint cannot be written to '{cache_dir}' ({error}): "
            "free some space there, or name another cache folder."
        ) from error
    if found is None:
        raise InputError(f"The converted checkpoint in '{final}' does not hold what was written ({damage}).")
    return found


def _examine(folder: Path, sha256: str, memory: Path, full: bool) -> tuple[Converted | None, str]:
    """The conversion in a folder if every file has its recorded hash; else None and the fault."""
    try:
        present = {file.name for file in folder.iterdir()} - {RECORD}
        with (folder / RECORD).open("rb") as file:
            text = file.read(_LONGEST_RECORD + 1)
        record = json.loads(text) if len(text) <= _LONGEST_RECORD else None
    except (OSError, ValueError, RecursionError):
        return None, f"{RECORD} cannot be read"
    if not isinstance(record, dict) or not isinstance(record.get("files"), dict):
        return None, f"{RECORD} is no record of a conversion"
    sums, tensors = record["files"], record.get("tensors_sha256")
    if record.get("gguf_sha256") != sha256 or not isinstance(tensors, str) or set(sums) != present:
        return None, f"{RECORD} is of other files"
    files = []
    for name in sorted(present):
        try:
            files.append(known_sha256(folder / name, memory, full=full))
        except OSError as error:
            return None, f"{name} cannot be read ({error.strerror or error})"
        if files[-1].sha256 != sums[name]:
            return None, f"{name} is not what was written"
    return Converted(folder, tuple(files), tensors), ""


def _convert_into(path: Path, sha256: str, final: Path, pre: str | None) -> None:
    """Convert beside the final folder, then rename; remains of killed conversions of this key are removed."""
    prefix = f".{final.name}."
    for leftover in final.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)
    if final.exists():  # incomplete: it would have been used otherwise
        shutil.rmtree(final)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        tensors = _convert(path, partial, pre)
        record = {
            "gguf_sha256": sha256,
            "converter": CONVERTER_VERSION,
            "pre": pre,
            "files": {file.name: file_sha256(file) for file in sorted(partial.iterdir())},
            "tensors_sha256": tensors,
        }
        (partial / RECORD).write_text(json.dumps(record, indent=1))
        partial.chmod(0o755)  # mkdtemp makes it private; a shared cache is meant to be shared
        for written in (*partial.iterdir(), partial):
            _to_disk(written)
        os.replace(partial, final)
        _to_disk(final.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _convert(path: Path, folder: Path, pre: str | None) -> str:
    """Write the de-quantised model and its tokenizer as plain files; returns the hash of the tensors."""
    source, name = str(path.resolve().parent), path.name
    tokenizer = from_gguf(read_metadata(path, _VOCABULARY), name, pre)
    try:
        quantized: Any = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=torch.float32, local_files_only=True
        )
    except (ValueError, LookupError) as error:  # an architecture it does not know, or a torn file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"transformers cannot de-quantise '{path}': {reason}") from error
    # transformers' model cannot be saved and names no architecture: rebuild it as a plain one.
    config = copy.deepcopy(quantized.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(quantized).__name__]
    plain: Any = type(quantized)(config).to(torch.float32)
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again, _ = settle(AutoTokenizer.from_pretrained(folder, local_files_only=True), folder)
    if ids_of(again, PROBE) != ids_of(tokenizer, PROBE):
        raise InputError(f"The tokenizer of '{path}' changes by being saved: convert the checkpoint by hand.")
    return tensors_sha256(plain.state_dict())
