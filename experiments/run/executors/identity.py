"""What the rows of a study depend on, as one process has it: compared between a worker and who writes its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from experiments.run.provenance import code_versions
from experiments.run.run_json import config_hash
from mech.models.chat import template_sha256, tokenizer_sha256
from probes.items.item import item_line


def identity_of(study: Any, config: Any, context: Any) -> dict[str, str]:
    """Name → hash or version: settings, weights, tokenizer, items, wording, libraries, commit."""
    session = context.session
    model = session.model
    items = hashlib.sha256("\n".join(map(item_line, session.items)).encode()).hexdigest()
    return {
        "settings": config_hash({**study.settings(config), **context.derived}),
        "weights": f"{model.identity.sha256} {model.identity.tensors_sha256} {model.dtype}",
        "tokenizer": tokenizer_sha256(model),
        "chat template": str(template_sha256(model)),
        "items": items,
        "wording": session.wording.sha256,
        **{name: str(version) for name, version in code_versions().items()},
    }


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The names of which two identities say something else, with both values where they are short."""
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    return [f"{name} ({str(found.get(name))[:14]}, not {str(wanted.get(name))[:14]})" for name in names]
