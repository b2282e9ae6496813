"""Activations kept on disk: safetensors files, found by what they were computed from, refused when they say otherwise.

    FOLDER/<first 16 of the model's SHA-256>/<kind>-<key>.safetensors

The key hashes model, dtype, tokens, intervention and format; the file's header repeats them, so that an entry that was
copied in, renamed or written by another version is refused by name instead of used.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from mech.errors import InputError

FORMAT = "3"
CONTENT = "content_sha256"  # of the header: the hash of what the entry holds


@dataclass(frozen=True)
class Store:
    """A folder of kept activations for one model in one precision; entries are written whole or not at all.

    Attributes:
        folder: where; made on first write.
        identity: what every entry must have been computed with (model SHA-256, dtype, library versions).
    """

    folder: Path
    identity: Mapping[str, str]

    def path(self, kind: str, about: Mapping[str, str]) -> Path:
        """Where an entry about this lies."""
        described = json.dumps({**self._header(kind), **about}, sort_keys=True)
        name = hashlib.sha256(described.encode()).hexdigest()
        return self.folder / self.identity["model_sha256"][:16] / f"{kind}-{name[:32]}.safetensors"

    def get(self, kind: str, about: Mapping[str, str]) -> dict[str, Tensor] | None:
        """The entry's tensors, or None where there is none.

        Raises:
            InputError: the file is torn or damaged, or its header is not that of this model and question (stale or
                foreign).
        """
        path = self.path(kind, about)
        try:
            if not path.exists():
                return None
            with safe_open(path, framework="pt") as file:
                found = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"The cache entry {path} cannot be read ({error}): delete it and run again."
            ) from error
        if found.pop(CONTENT, None) != _content_sha256(tensors):
            raise InputError(
                f"The cache entry {path} is damaged (not what was written): delete it and run again."
            )
        wanted = {**self._header(kind), **about}
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if wrong:
            raise InputError(
                f"The cache entry {path} is stale or foreign (its {', '.join(wrong)} differ): delete it and run again."
            )
        return tensors

    def put(self, kind: str, about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
        """Keep an entry, replacing one about the same; raises InputError when the folder cannot be written."""
        path = self.path(kind, about)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(
                whole, temporary, metadata={**self._header(kind), **about, CONTENT: _content_sha256(whole)}
            )
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):  # the folder may not even be one
                temporary.unlink(missing_ok=True)
            raise InputError(f"The cache folder {self.folder} cannot be written ({error}).") from error

    def _header(self, kind: str) -> dict[str, str]:
        return {"format": FORMAT, "kind": kind, **self.identity}


def _content_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
