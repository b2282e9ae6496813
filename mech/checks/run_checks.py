"""Load-time self-checks: which of them run, the checks of tokenizer and template, and the refusal.

A failed check refuses the model (`require`); a flagged one passes with a sentence for the user, such as a chat template
that needed a fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from mech.checks.checks import (
    CheckResult,
    Trace,
    check_attention_rows,
    check_cache,
    check_causal_hooks,
    check_finite,
    check_head_sum,
    check_kv_heads,
    check_packed_row,
    check_stock,
    check_window,
    trace,
)
from mech.errors import InputError
from mech.models.chat import Message, encode, render, shared_prefix
from mech.models.model import Model
from mech.models.pre_tokenizers import RULES, UNSTATED
from mech.models.templates import template_text
from mech.models.tokenizers import Statement, cuts_of, ids_of

TRANSFORMERS_RANGE = ((5, 9), (5, 24))
"""First version that works, first that does not: 5.24 renamed the argument that holds the cache."""

_FORWARD_CHECKS: tuple[Callable[[Model, Trace], CheckResult | list[CheckResult]], ...] = (
    check_attention_rows,
    check_head_sum,
    check_kv_heads,
    check_cache,
    check_causal_hooks,
    check_packed_row,
    check_window,
)
_REASONS = (InputError, RuntimeError, AttributeError, LookupError, TypeError, ValueError)
"""What a model that this package cannot run raises in a check."""

N_PROBE = 12
_TEXT = "def total(items):\n    return sum(item.price for item in items)\n\nThe capital of France is"
_SAMPLE: tuple[Message, ...] = (
    {"role": "system", "content": "You are an assistant that answers with one function call."},
    {"role": "user", "content": "List the notes of 3 May."},
)
_RECORD: tuple[Message, ...] = (
    {"role": "assistant", "content": "list_notes(day='3 May')"},
    {"role": "user", "content": "Error: day must be written YYYY-MM-DD."},
)


def probe_ids(tokenizer: Any, device: torch.device | str = "cpu") -> Tensor:
    """The ids [1, N_PROBE] the checks run on: the start of a fixed text."""
    ids = tokenizer(_TEXT, add_special_tokens=False)["input_ids"][:N_PROBE]
    return torch.tensor([ids], device=device)


def run_checks(
    model: Model,
    stock: Tensor | None = None,
    gguf_metadata: Mapping[str, Any] | None = None,
    statement: Statement | None = None,
) -> list[CheckResult]:
    """Every check in order; those that run the model are skipped once one shows that it cannot be run.

    Args:
        model: the loaded model.
        stock: logits [pos, d_vocab] of `probe_ids` from the transformers model before it was wrapped; None skips the
            comparison with the stock forward.
        gguf_metadata: header of the GGUF file that the model came from, if any.
        statement: what the checkpoint says of its tokenizer; None skips the comparison.
    """
    results = [check_versions(), check_eval_mode(model), check_transcript(model), check_prefix(model)]
    if statement is not None:
        results.append(check_pre_tokenizer(model, statement))
    results.append(check_lengths(model))
    if gguf_metadata:
        results.append(check_special_tokens(model, gguf_metadata))
    if not results[1].passed:
        return results
    try:
        run = trace(model, probe_ids(model.tokenizer, model.device))
    except _REASONS as error:
        return [*results, _broken("hooks", error)]
    results.append(check_finite(run))
    if not results[-1].passed:
        return results
    if stock is not None:
        results.append(check_stock(model, run, stock))
    for check in _FORWARD_CHECKS:
        results.extend(_guarded(check, model, run))
    return results


def require(results: Sequence[CheckResult], name: str = "") -> None:
    """Raise InputError that names every failed check of the model `name`, with the sentence of the first."""
    failed = [result for result in results if not result.passed]
    if failed:
        noun = "check" if len(failed) == 1 else "checks"
        names = ", ".join(result.name for result in failed)
        raise InputError(
            f"The model{name and f' {name!r}'} is refused, as it fails the load-time {noun} {names}: "
            f"{failed[0].sentence}."
        )


def check_versions() -> CheckResult:
    """The version of transformers is one whose cache the bridge reads."""
    found = version("transformers")
    lowest, first_bad = TRANSFORMERS_RANGE
    numbers = tuple(int(part) for part in found.split(".")[:2])
    passed = lowest <= numbers < first_bad
    sentence = (
        f"transformers {found}, transformer-lens {version('transformer-lens')}, torch {version('torch')}"
    )
    if not passed:
        sentence += f": install transformers>={lowest[0]}.{lowest[1]},<{first_bad[0]}.{first_bad[1]}"
    return CheckResult("versions", passed, None, None, sentence)


def check_eval_mode(model: Model) -> CheckResult:
    """No module is in training mode."""
    try:
        model.require_eval_mode()
    except InputError as error:
        return _broken("eval_mode", error)
    return CheckResult("eval_mode", True, None, None, "every module is in evaluation mode")


def check_lengths(model: Model) -> CheckResult:
    """The length up to which scores are exact; flagged where anything but learned positions limits it."""
    try:
        limits = model.limits
    except _REASONS as error:
        return _broken("lengths", error)
    if not limits:
        return CheckResult(
            "lengths", True, None, None, "a position is computed alike in sequences of every length"
        )
    shortest = limits[0]
    sentence = f"{model.identity.name} {shortest.reason}: longer sequences are refused"
    n = float(shortest.n_tokens)
    return CheckResult("lengths", True, n, None, sentence, flagged=not shortest.learned)


def check_transcript(model: Model) -> CheckResult:
    """A sample transcript renders, no beginning-of-sequence token is doubled; fallbacks are flagged."""
    try:
        rendering = render(model, [*_SAMPLE, *_RECORD])
    except InputError as error:
        return _broken("chat_template", error)
    notes = list(rendering.notes)
    template = template_text(model.tokenizer) or ""
    if "strftime_now" in template and "date_string" not in model.chat_template_kwargs:
        notes.append("the template writes today's date, so scores change from day to day")
    bos, written = model.tokenizer.bos_token_id, "no beginning-of-sequence token"
    count = 0 if bos is None else rendering.ids.count(bos)
    if bos is not None:
        written = f"'{model.tokenizer.bos_token}' {count} times"
    sentence = "; ".join(notes) or f"the sample transcript renders, with {written}"
    return CheckResult("chat_template", True, float(count), None, sentence, flagged=bool(notes))


def check_prefix(model: Model) -> CheckResult:
    """The context's ids begin the ids of context and record; if not, scores go by ids (flagged)."""
    try:
        context = render(model, _SAMPLE, generation_prompt=False).ids
        longer = render(model, [*_SAMPLE, *_RECORD], generation_prompt=False).ids
    except InputError as error:
        return _broken("prefix_preserved", error)
    shared = shared_prefix(context, longer)
    n = len(context)
    sentence = "the ids of a context begin the ids of context and record"
    if shared < n:
        sentence = f"a longer transcript keeps {shared} of its {n} ids: scores go by ids"
    return CheckResult("prefix_preserved", True, float(shared), float(n), sentence, flagged=shared < n)


def check_pre_tokenizer(model: Model, statement: Statement) -> CheckResult:
    """The tokenizer and the bridge's copy give the checkpoint's own ids; of a GGUF file, by the rules it names."""
    if statement.ids is None:
        sentence = (
            f"there is no tokenizer.json: the rules are those of transformers' {statement.class_name}, with nothing "
            "to compare them with"
        )
        return CheckResult("pre_tokenizer", True, None, None, sentence, flagged=True)
    texts = statement.texts
    found = [ids_of(one, texts) for one in (model.tokenizer, model.bridge.tokenizer)]
    wrong = [text for text, *ids in zip(texts, statement.ids, *found, strict=True) if len(set(ids)) > 1]
    notes = []
    if statement.replaced:
        notes.append(
            f"transformers' {statement.class_name} gives {statement.replaced} of {len(texts)} probe texts other ids "
            "than the checkpoint's tokenizer.json, whose rules are used instead"
        )
    said = f"the {len(texts)} probe texts have the ids of the checkpoint's tokenizer.json"
    if statement.pre is not None:
        rules = RULES[statement.pre]
        said = f"{said}, which cuts as '{statement.pre}' says ({rules.source})"
        if cuts_of(model.tokenizer) != cuts_of(rules):
            sentence = (
                f"the converted tokenizer.json does not cut as '{statement.pre}' (tokenizer.ggml.pre) says: delete the "
                "converted checkpoint"
            )
            return CheckResult("pre_tokenizer", False, float(len(wrong)), 0.0, sentence)
        if statement.by_hand:
            notes.append(f"'{statement.pre}' was given by hand")
        if rules.normalizer == UNSTATED:
            notes.append(
                "whether it composes characters first is not stated: text that is not composed is refused"
            )
    sentence = "; ".join([*notes, said])
    if wrong:
        sentence = (
            f"{len(wrong)} of {len(texts)} probe texts have other ids than the checkpoint's own tokenizer gives, the "
            f"first being {wrong[0]!r}: give the checkpoint another tokenizer class, or convert it again"
        )
    return CheckResult("pre_tokenizer", not wrong, float(len(wrong)), 0.0, sentence, flagged=bool(notes))


def check_special_tokens(model: Model, gguf_metadata: Mapping[str, Any]) -> CheckResult:
    """The converted tokenizer has the BOS and EOS that the GGUF header states."""
    tokenizer = model.tokenizer
    wrong: list[str] = []
    flags: list[str] = []
    for name in ("bos", "eos"):
        stated = gguf_metadata.get(f"tokenizer.ggml.{name}_token_id")
        found = getattr(tokenizer, f"{name}_token_id")
        if stated is not None and stated != found:
            wrong.append(f"the {name.upper()} id is {stated} in the GGUF header, {found} in the tokenizer")
    stated = gguf_metadata.get("tokenizer.ggml.add_bos_token")
    adds = tokenizer("a")["input_ids"] != list(encode(model, "a"))
    if stated is not None and bool(stated) != adds:
        flags.append(f"the header says {'' if stated else 'not '}to add BOS, the tokenizer does otherwise")
    sentence = "; ".join([*wrong, *flags]) or "BOS and EOS are those of the GGUF header"
    if wrong:
        sentence += ": convert the checkpoint by hand and load the folder"
    failed = float(len(wrong))
    return CheckResult("gguf_special_tokens", not wrong, failed, 0.0, sentence, flagged=bool(flags))


def _broken(name: str, error: Exception) -> CheckResult:
    """A check that raised is a failed check."""
    return CheckResult(name, False, None, None, str(error).strip().rstrip("."))


def _guarded(
    check: Callable[[Model, Trace], CheckResult | list[CheckResult]], model: Model, run: Trace
) -> list[CheckResult]:
    """The results of a check; an error of the model or of a hook fails it, by name."""
    try:
        outcome = check(model, run)
    except _REASONS as error:
        return [_broken(check.__name__.removeprefix("check_"), error)]
    return outcome if isinstance(outcome, list) else [outcome]
