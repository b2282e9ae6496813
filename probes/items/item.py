"""Decision points as values: a context C, the action a× that fails there, and what could be observed of it.

An item is text only. How a failure is written into a transcript is `probes.prompts.conditions`; which statistic is
taken of it is `probes.measures.measures`. The fields are those of the published item files, so that files of either
origin load. A recorded transcript does not know all of them: what it cannot know may be left out (or null), and
the conditions and measures that need it are then left out for that item (`probes.prompts.conditions.lacking`).

A run that visits the first N ids over-represents early tasks and whichever operator sorts first.
`select_items` therefore takes N items of a balanced order: every operator gets its turn (round-robin,
operators in alphabetical order) and no task is used often before the others were; with `by_template`, at each turn an
item of the templates and system prompts that were used least. The order is fixed, so that the sample of a smaller N
is a subset of the sample of a larger N.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from mech.errors import InputError
from mech.input_files import NotJson, checked, parse_json, read_bytes, refuse

QUOTES = "traceback_quotes_source"  # the key of meta that says whether the error quotes a line of a×
FRAME = "observation_frame"  # the key of meta that frames this item's observations, instead of the wording's prefix
AS_TEXT = "{observation}"  # the place of the observation in a frame, as it is
AS_JSON = "{json}"  # the same, as a JSON string
_LISTS = ("prefix_actions", "prefix_observations", "distractors")
_MAX_STEPS = 2**31 - 1
UNKNOWN = "unknown"  # the operator, error type and template of an item that does not say


@dataclass(frozen=True, kw_only=True)
class Item:
    """One decision point; its cluster, for statistics, is `task_id`.

    `prefix_actions` and `prefix_observations` are the successful steps before the decision (equal lengths);
    `gold_action` is the reference action; `obs_*` are the observations a× could be answered with; `obs_fail_other`
    answers the first distractor; `tool` is the tool's name as a× writes it, None where actions have no tool.
    """

    item_id: str
    env: str
    task_id: str
    template: str = UNKNOWN
    step_index: int = 0
    operator: str = UNKNOWN
    error_type: str = UNKNOWN
    system_prompt: str
    goal: str
    prefix_actions: tuple[str, ...] = ()
    prefix_observations: tuple[str, ...] = ()
    failed_action: str
    gold_action: str | None = None
    obs_fail: str
    obs_fail_terse: str | None = None
    obs_fail_verbose: str | None = None
    obs_fail_echo: str | None = None
    obs_success: str | None = None
    obs_neutral: str
    obs_fail_other: str | None = None
    distractors: tuple[str, ...] = ()
    tool: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def candidates(self) -> dict[str, str]:
        """Name → action text, in the fixed order failed, gold, distractor0, distractor1 (those there are)."""
        others = {f"distractor{index}": text for index, text in enumerate(self.distractors[:2])}
        gold = {} if self.gold_action is None else {"gold": self.gold_action}
        return {"failed": self.failed_action, **gold, **others}


PER_TASK = 3  # items of one task before every task had its chance; the published samples have this cap
_ORDER_SEED = 0  # a constant: which N items `--limit N` means must not depend on a run's own seed
_NAMES = tuple(each.name for each in fields(Item))


def load_items(path: str | os.PathLike[str]) -> list[Item]:
    """Read an item file (JSON lines, UTF-8), in file order.

    Raises InputError that lists every fault of the file with its line and item: a torn or malformed line, missing
    and unknown fields, values of the wrong type, blank texts, characters that UTF-8 lacks, numbers that are not finite,
    a field or an id that occurs twice, prefixes of two lengths, and a reference action or distractor that is a× (or
    one another). Also when the file cannot be read or holds no item.
    """
    raw = read_bytes(path, "item file")
    items: list[Item] = []
    first_seen: dict[str, int] = {}
    faults: list[str] = []
    # Bytes are cut at the newline byte alone: str.splitlines would also cut inside JSON strings (U+2028).
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        item_id, item, found = _item_from_line(line)
        if item_id is not None and first_seen.setdefault(item_id, number) != number:
            found.append(f"the item id is already on line {first_seen[item_id]}: remove one of the two")
        where = f"line {number}" if item_id is None else f"line {number} (item {item_id!r})"
        faults += [f"{where}: {fault}" for fault in found]
        items += [] if item is None else [item]
    refuse(path, "item file", faults)
    if not items:
        raise InputError(f"The item file '{os.fspath(path)}' holds no items.")
    return items


def dump_items(items: Iterable[Item], path: str | os.PathLike[str]) -> None:
    """Write an item file that `load_items` reads back equal; the file appears complete or not at all.

    Raises InputError when the place cannot be written, or a text of an item cannot (half of a surrogate pair).
    """
    lines = []
    for item in items:
        try:
            lines.append(f"{item_line(item)}\n".encode())
        except UnicodeEncodeError as error:
            raise InputError(
                f"The item {item.item_id!r} holds half of a surrogate pair, which no file can hold."
            ) from error
    target = Path(path)
    partial: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.", suffix=".partial")
        partial = Path(name)  # of this process alone: two may write one file at once
        with os.fdopen(handle, "wb") as file:
            file.write(b"".join(lines))
        partial.chmod(0o644)
        os.replace(partial, target)
    except OSError as error:
        if partial is not None:
            with suppress(OSError):  # where nothing could be written there may be nothing to remove either
                partial.unlink()
        raise InputError(f"Cannot write the item file '{target}': {error.strerror or error}.") from error


def item_line(item: Item) -> str:
    """The item as one line of JSON, fields in the order of the class, without the newline."""
    record = {name: getattr(item, name) for name in _NAMES}
    record["meta"] = dict(item.meta)
    return json.dumps(record, ensure_ascii=False)


def select_items(
    items: Sequence[Item],
    ids: Sequence[str] | None = None,
    limit: int | None = None,
    by_template: bool = False,
) -> list[Item]:
    """The items with these ids (all if None), at most `limit` of them, in the order of the item file.

    `limit` takes the first N of `balanced_order`, not the first N lines. Raises InputError for an unknown id,
    an empty list of ids, or a limit below 1.
    """
    chosen = list(items)
    if ids is not None:
        known = {item.item_id for item in items}
        unknown = [each for each in ids if each not in known]
        if unknown:
            more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            raise InputError(f"No item has the id '{unknown[0]}'{more}: take ids from the item file in use.")
        if not ids:
            raise InputError("The list of item ids is empty: name at least one id, or leave the list out.")
        wanted = set(ids)
        chosen = [item for item in items if item.item_id in wanted]
    if limit is None:
        return chosen
    if limit < 1:
        raise InputError(f"The limit must be at least 1 item, not {limit}.")
    order = balanced_order(chosen, random.Random(_ORDER_SEED), by_template=by_template)
    return _in_file_order(chosen, order[:limit])


def balanced_order(
    items: Sequence[Item], rng: random.Random, per_task: int = PER_TASK, by_template: bool = False
) -> list[Item]:
    """All items, the most balanced sample first: rounds of `per_task` items a task until none is left.

    `by_template`: over templates and system prompts as well, which item files that were sampled otherwise need not be.
    """
    order: list[Item] = []
    left = list(items)
    while left:
        order += _one_round(left, per_task, rng, by_template)
        taken = {item.item_id for item in order}
        left = [item for item in left if item.item_id not in taken]
    return order


def _item_from_line(line: bytes) -> tuple[str | None, Item | None, list[str]]:
    """The id that a line gives, its item (None where anything is wrong), and its faults, each a clause."""
    try:
        record, faults = parse_json(line)
    except NotJson as error:
        return None, None, [f"it is not a whole JSON object ({error}): repair or remove that line"]
    if not isinstance(record, dict):
        return None, None, ["it is not a JSON object with the fields of an item"]
    parsed, wrong = checked(_RECORD, record)
    faults += [*wrong, *_contradictions(record)]
    item_id = record.get("item_id")
    known = item_id if isinstance(item_id, str) and item_id.strip() else None
    if parsed is None or faults:
        return known, None, faults
    values = {name: value for name, value in parsed.model_dump().items() if value is not None}
    values.update({name: tuple(values[name]) for name in _LISTS if name in values})
    return known, Item(**{"step_index": len(values.get("prefix_actions", ())), **values}), []


def _one_round(
    items: Sequence[Item], per_task: int, rng: random.Random, by_template: bool = False
) -> list[Item]:
    if per_task < 1:
        raise InputError(f"The cap of items per task must be at least 1, not {per_task}.")
    queues: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda each: each.item_id):
        queues.setdefault(item.operator, []).append(item)
    for queue in queues.values():
        rng.shuffle(queue)
    used: Counter[str] = Counter()
    templates: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    order: list[Item] = []
    while any(queues.values()):
        for operator in sorted(queues):
            queue = queues[operator]
            if by_template:  # stable: in the drawn order where two are used equally often
                queue.sort(key=lambda each: (templates[each.template], prompts[each.system_prompt]))
            taken = _next_below_cap(queue, used, per_task)
            if taken is not None:
                used[taken.task_id] += 1
                templates[taken.template] += 1
                prompts[taken.system_prompt] += 1
                order.append(taken)
    return order


def _next_below_cap(queue: list[Item], used: Counter[str], per_task: int) -> Item | None:
    """Take the queue's first item whose task is below its cap; items of full tasks are dropped on the way."""
    while queue:
        item = queue.pop(0)
        if used[item.task_id] < per_task:
            return item
    return None


def _in_file_order(items: Sequence[Item], chosen: Sequence[Item]) -> list[Item]:
    ids = {item.item_id for item in chosen}
    return [item for item in items if item.item_id in ids]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must be a non-empty string")
    return text


def _flag(meta: dict[str, Any]) -> dict[str, Any]:
    if meta.get(QUOTES) not in (None, True, False):
        raise ValueError(f"must be an object whose '{QUOTES}' is true, false or null")
    frame = meta.get(FRAME)
    if frame is not None and not (
        isinstance(frame, str) and frame.count(AS_TEXT) + frame.count(AS_JSON) == 1
    ):
        raise ValueError(
            f"must be an object whose '{FRAME}' is a text with {AS_TEXT} or {AS_JSON} in it, once"
        )
    return meta


NonBlank = Annotated[str, AfterValidator(_not_blank)]
"""A text field of an input file that must say something."""


class _Record(BaseModel):
    """A line of an item file; the fields and their order are those of `Item`. Null means the same as nothing."""

    model_config = ConfigDict(strict=True, extra="forbid")

    item_id: NonBlank
    env: NonBlank
    task_id: NonBlank
    template: NonBlank | None = None
    step_index: Annotated[int, Field(ge=0, le=_MAX_STEPS)] | None = None
    operator: NonBlank | None = None
    error_type: NonBlank | None = None
    system_prompt: str
    goal: NonBlank
    prefix_actions: list[NonBlank] | None = None
    prefix_observations: list[str] | None = None
    failed_action: NonBlank
    gold_action: NonBlank | None = None
    obs_fail: NonBlank
    obs_fail_terse: NonBlank | None = None
    obs_fail_verbose: NonBlank | None = None
    obs_fail_echo: NonBlank | None = None
    obs_success: NonBlank | None = None
    obs_neutral: NonBlank
    obs_fail_other: str | None = None
    distractors: list[NonBlank] | None = None
    tool: str | None = None
    meta: Annotated[dict[str, Any], AfterValidator(_flag)] | None = None


_RECORD = TypeAdapter(_Record)


def _contradictions(record: Mapping[str, Any]) -> Iterator[str]:
    """Fields that are right by themselves and cannot all be; those of a wrong type are passed over."""
    actions, observations = (record.get(name) or [] for name in _LISTS[:2])
    if isinstance(actions, list) and isinstance(observations, list) and len(actions) != len(observations):
        yield "'prefix_actions' and 'prefix_observations' must be equally long"
    step = record.get("step_index")
    if isinstance(actions, list) and isinstance(step, int) and bool(step) != bool(actions):
        yield f"'step_index' is {step} and there are {len(actions)} 'prefix_actions': steps precede it, or none do"
    distractors = record.get("distractors")
    named = {"failed_action": record.get("failed_action"), "gold_action": record.get("gold_action")}
    if isinstance(distractors, list):
        named |= {f"distractors[{index}]": text for index, text in enumerate(distractors)}
    # Compared without the blanks at their ends, which many chat templates trim.
    seen: dict[str, str] = {}
    for name, text in named.items():
        if isinstance(text, str) and text.strip() and seen.setdefault(text.strip(), name) != name:
            yield f"'{name}' is the same action as '{seen[text.strip()]}': each must be another one"
