"""`backfire doctor`: versions, what exactly was loaded, and every check of a load and of a study with its number."""

from __future__ import annotations

import dataclasses

from experiments.run.item_pools import checkpoint_cache
from experiments.run.provenance import provenance
from experiments.run.session import read_wording
from experiments.run.study import ModelOptions, Report, Study, WordingFileOptions
from mech.load import examine_model
from probes.scoring.transcript_checks import transcript_checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(WordingFileOptions, ModelOptions):
    """What `backfire doctor` is given."""


def run(config: DoctorConfig) -> Report:
    """Load the model without refusing it, and try all that studies ask of it; not ok when a check failed."""
    wording = read_wording(config)
    model, checks = examine_model(
        config.model, dtype=config.dtype, device=config.device, cache_dir=checkpoint_cache(), pre=config.pre
    )
    model = dataclasses.replace(model, special_in_content=config.allow_special_in_content)
    if all(check.passed for check in checks):
        checks = [*checks, *transcript_checks(model, wording)]
    made_with = provenance({})
    versions = ", ".join(f"{name} {version}" for name, version in made_with["versions"].items())
    identity = model.identity
    lines = [
        versions,
        f"{made_with['platform']}, {made_with['threads']} threads",
        f"model {identity.name} ({identity.architecture}), {model.dtype}, from {identity.source}",
        f"sha256 {identity.sha256}, of the tensors in memory {identity.tensors_sha256}",
        f"{identity.n_parameters:,} parameters, {model.n_layers} layers x {model.n_heads} heads, "
        f"{model.n_kv_heads} key/value heads, d_head {model.d_head}, vocabulary {model.d_vocab:,}",
        "",
    ]
    for check in checks:
        mark = "FAIL" if not check.passed else "note" if check.flagged else "ok"
        number = (
            ""
            if check.value is None
            else f" {check.value:.3g}" + (f" (limit {check.limit:.3g})" if check.limit else "")
        )
        lines.append(f"{mark:<5}{check.name:<26}{number:<28}{check.sentence}")
    failed = sum(not check.passed for check in checks)
    lines.append(f"\n{len(checks) - failed} of {len(checks)} checks passed")
    return Report("\n".join(lines), ok=failed == 0)


STUDY = Study(
    "doctor",
    "backfire doctor --model smollm2-135m-q4",
    DoctorConfig,
    run,
)
