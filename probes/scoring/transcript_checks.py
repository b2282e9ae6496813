"""Checks of a chat template: everything that a study needs of it, tried on a sample item.

A failed check means that no item can be scored; a flagged one names what differs, or which studies cannot run and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mech.checks.checks import CheckResult
from mech.decoding.turn_spans import turn_span
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.models.chat import Message, end_of_turn_id, render, require_role, text_ids
from mech.models.model import Model
from mech.models.special_tokens import special_tokens
from probes.items.item import Item
from probes.items.toolshed import build_toolshed_items
from probes.prompts.conditions import CONDITIONS
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import Wording
from probes.scoring.pair import pattern_columns, shared_positions
from probes.scoring.record import edge_sources, padding_sources, record_attention, spans
from probes.scoring.score import build_queries, run_decision_point

RECORDED = (
    *("fail", "succ", "neut", "neut_pad", "neut_matched", "neut_other"),
    *("fail_terse", "fail_verbose", "fail_echo"),
)
_EDGES = " Mixed  Case\n\n\nlines \n1. one\r\n\ttab \n"


@dataclass(frozen=True)
class _Found:
    """A check that passed: what it found in words, a number where there is one, and whether that is worth a flag."""

    sentence: str
    value: float | None = None
    flagged: bool = False


def transcript_checks(model: Model, wording: Wording) -> list[CheckResult]:
    """Every check of a model's template and tokenizer on a sample item, under every condition of a wording."""
    item = sample_item()
    results = [
        _attempt("observation_role", lambda: _role(model, wording)),
        _attempt("end_of_turn", lambda: _end(model)),
        _attempt("conditions", lambda: _conditions(model, item, wording)),
    ]
    if not all(result.passed for result in results):
        return results
    engine = Engine(model)
    knockout = "knockout, joint, patch --at, path, mechanism"
    return [
        *results,
        _attempt("content_kept", lambda: _content(model), "the record of an action with such text"),
        _attempt("special_tokens_as_text", lambda: _special(model), "items that spell a special token"),
        _attempt("record_spans", lambda: _spans(engine, item, wording), knockout),
        _attempt("record_tokens", lambda: _tokens(engine, item, wording), "agree on transcripts"),
        _attempt("pattern_positions", lambda: _pattern(engine, item, wording), "patch --site pattern"),
        _attempt("hidden_turns", lambda: _hidden(model, item), "rollout --change knockout"),
    ]


def sample_item() -> Item:
    """A decision point with a successful step before it, and a far placebo."""
    items = build_toolshed_items(0)
    first = next(item for item in items if item.step_index)
    return with_unrelated([first], items)[0]


def _attempt(name: str, check: Callable[[], _Found], without: str | None = None) -> CheckResult:
    """The check's result; what it raises fails it, or is flagged where only some studies (`without`) need it."""
    try:
        found = check()
    except InputError as error:
        reason = str(error).strip().rstrip(".")
        if without is None:
            return CheckResult(name, False, None, None, reason)
        return CheckResult(name, True, None, None, f"cannot run: {without} ({reason})", flagged=True)
    return CheckResult(name, True, found.value, None, found.sentence, flagged=found.flagged)


def _role(model: Model, wording: Wording) -> _Found:
    require_role(model, wording.observation_role)
    return _Found(f"observations come back in the role '{wording.observation_role}'")


def _end(model: Model) -> _Found:
    return _Found(f"a turn ends with {model.tokenizer.decode([end_of_turn_id(model)])!r}")


def _conditions(model: Model, item: Item, wording: Wording) -> _Found:
    """Every condition is rendered, and every action found after it."""
    notes: dict[str, None] = {}
    for name in CONDITIONS:
        try:
            asked = build_queries(model, item, [name], wording)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        notes.update(dict.fromkeys(note for scoring in asked for note in scoring.notes))
        if any(scoring.boundary_merged for scoring in asked):
            notes["a prompt's last token merges with the action's first"] = None
    sentence = "; ".join(notes) or "every condition renders"
    return _Found(sentence, float(len(CONDITIONS)), flagged=bool(notes))


def _content(model: Model) -> _Found:
    """A text with spaces at its ends, blank lines and capitals is rendered in every role as it is."""
    turns: list[Message] = [
        {"role": role, "content": f"{_EDGES}{role}{_EDGES}"}
        for role in ("system", "user", "assistant", "user")
    ]
    notes = [note for note in render(model, turns).notes if note.startswith("the template ")]
    sentence = "; ".join(notes) or "the transcript has the messages to the letter"
    return _Found(sentence, flagged=bool(notes))


def _special(model: Model) -> _Found:
    """No special token that a message spells is read as one."""
    control = special_tokens(model.tokenizer).ids
    if model.special_in_content:
        return _Found("special tokens in messages are real ones", flagged=True)
    text_ids(model, " ".join(control))
    return _Found("what a message spells as a special token is read as text", float(len(control)))


def _spans(engine: Engine, item: Item, wording: Wording) -> _Found:
    """The recorded call, its observation, the goal and an earlier call are found in every condition with a record."""
    for name in RECORDED:
        spans(engine.model, item, name, wording)
    found = edge_sources(engine, item, "neut", wording)
    padding_sources(engine, item, wording)
    shared_positions(engine.model, item, ("neut", "fail"), wording, "record")
    tokens = ", ".join(f"{name} {len(places)}" for name, places in found.items())
    return _Found(f"found in the transcript, in tokens: {tokens}", float(len(found)))


def _tokens(engine: Engine, item: Item, wording: Wording) -> _Found:
    record_attention(engine, item, "neut", wording)
    return _Found("the record has the tokens that are scored")


def _pattern(engine: Engine, item: Item, wording: Wording) -> _Found:
    pre, neut = (
        (name, run_decision_point(engine, item, name, wording, []).query) for name in ("pre", "neut")
    )
    columns = pattern_columns(engine.model, item, pre, neut, wording)
    return _Found("pre and neut have the same tokens around the record", float(len(columns)))


def _hidden(model: Model, item: Item) -> _Found:
    start, stop = turn_span(model, list(_turns(item)), 2)
    return _Found("attention to a failed call can be knocked out", float(stop - start))


def _turns(item: Item) -> Iterator[Message]:
    yield {"role": "system", "content": item.system_prompt}
    yield {"role": "user", "content": item.goal}
    yield {"role": "assistant", "content": item.failed_action}
    yield {"role": "user", "content": item.obs_fail}
