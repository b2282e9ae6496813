"""GGUF checkpoints: their metadata, and one conversion to a plain folder that later loads read.

De-quantising is slow (transformers parses the file several times and rebuilds the tokenizer), so it is done
once:

    GGUF file --(transformers, float32)--> cache/<sha256, converter version, transformers version>/
                                             model.safetensors, config.json, tokenizer files, conversion.json

The folder is made under another name and renamed when complete, so a killed conversion is never read;
`conversion.json` holds the size of every file, so that a damaged folder is made again. The header's format is
that of the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import copy
import hashlib
import json
import mmap
import os
import shutil
import struct
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from mech.errors import InputError

CONVERTER_VERSION = 1
"""Raise it when a conversion would come out differently: cached folders of another version are not used."""

RECORD = "conversion.json"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PROBE = "def send(to='Ana'):\n    return 3.5  # naïve\n<|im_start|>user"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def read_metadata(path: Path) -> dict[str, Any]:
    """The scalar and string entries of a GGUF header (arrays, such as the vocabulary, are skipped).

    Raises:
        InputError: the file cannot be read, is not GGUF, or ends inside its header.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse_header(data)
    except OSError as error:
        raise InputError(f"The GGUF file '{path}' cannot be read: {error.strerror or error}.") from error
    except (struct.error, ValueError, KeyError) as error:
        raise InputError(f"'{path}' is not a complete GGUF file: download it again.") from error


def _parse_header(data: mmap.mmap) -> dict[str, Any]:
    offset = 0

    def take(form: str) -> Any:
        nonlocal offset
        (value,) = struct.unpack_from("<" + form, data, offset)
        offset += struct.calcsize("<" + form)
        return value

    def text() -> str:
        nonlocal offset
        length = take("Q")
        value = data[offset : offset + length]
        if len(value) != length:
            raise ValueError("the header ends inside a string")
        offset += length
        return value.decode("utf-8", "replace")

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
            if element == _STRING:
                for _ in range(count):
                    offset += 8 + int(struct.unpack_from("<Q", data, offset)[0])
            else:
                offset += count * struct.calcsize("<" + _SCALARS[element])
        else:
            entries[key] = take(_SCALARS[kind])
    return entries


def cached_folder(path: Path, sha256: str, cache_dir: Path) -> Path:
    """The plain checkpoint folder of a GGUF file, converted now if the cache has none.

    Two processes that want the same file convert it once: the second waits for the first.

    Args:
        path: the GGUF file.
        sha256: its `file_sha256`, the key.
        cache_dir: where converted folders live; created if missing.

    Raises:
        InputError: the cache folder cannot be written, the disk is full, or the file cannot be de-quantised.
    """
    final = cache_dir / f"gguf-{sha256[:16]}-c{CONVERTER_VERSION}-transformers{version('transformers')}"
    if _is_complete(final, sha256):
        return final
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir / f"{final.name}.lock"):
            if not _is_complete(final, sha256):
                _convert_into(path, sha256, final)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"The converted checkpoint cannot be written to '{cache_dir}' ({error}): "
            "free some space there, or name another cache folder."
        ) from error
    return final


def _is_complete(folder: Path, sha256: str) -> bool:
    """Whether the folder holds a finished conversion of this file, every file of its recorded size."""
    try:
        record = json.loads((folder / RECORD).read_text())
        sizes = {name: (folder / name).stat().st_size for name in record["sizes"]}
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, KeyError):
        return False
    return bool(record["gguf_sha256"] == sha256 and sizes == record["sizes"])


def _convert_into(path: Path, sha256: str, final: Path) -> None:
    """Convert beside the final folder, then rename; what a killed conversion of this key left is removed."""
    prefix = f".{final.name}."
    for leftover in final.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)
    if final.exists():  # incomplete: it would have been used otherwise
        shutil.rmtree(final)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        _convert(path, partial)
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        record = {"gguf_sha256": sha256, "converter": CONVERTER_VERSION, "sizes": sizes}
        (partial / RECORD).write_text(json.dumps(record, indent=1))
        partial.chmod(0o755)  # mkdtemp makes it private; a shared cache is meant to be shared
        os.replace(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _convert(path: Path, folder: Path) -> None:
    """Write the de-quantised model and its tokenizer as plain files."""
    source, name = str(path.resolve().parent), path.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name, local_files_only=True)
        quantized: Any = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=torch.float32, local_files_only=True
        )
    except (ValueError, LookupError) as error:  # an architecture it does not know, or a torn file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"transformers cannot de-quantise '{path}': {reason}") from error
    # What transformers returns refuses to be saved and names no architecture: rebuild it as a plain model.
    config = copy.deepcopy(quantized.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(quantized).__name__]
    plain: Any = type(quantized)(config).to(torch.float32)
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if again.encode(_PROBE, add_special_tokens=False) != tokenizer.encode(_PROBE, add_special_tokens=False):
        raise InputError(f"The tokenizer of '{path}' changes by being saved: convert the checkpoint by hand.")
