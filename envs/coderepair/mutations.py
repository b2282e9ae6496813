"""Programs spoilt by one slip, as small models make them: one span of the text changes, every other byte stays.

A slip is found in the syntax tree and made in the text, at the tree's positions. It counts only if the text then
parses to the tree that was meant (or, for `syntax_slip`, does not parse), so that no slip is another one in
disguise. Whether a mutant also *fails* is not known before it has run: that is the environment's to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envs.coderepair import expression_slips, name_slips, statement_slips
from envs.coderepair.source import Change, Source

Operator = Callable[[Source], Iterator[Change]]

# In this order: where two operators write the same program, the first one owns it.
OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (
        expression_slips.comparison_flip,
        expression_slips.index_shift,
        expression_slips.off_by_one,
        expression_slips.arithmetic_flip,
        expression_slips.logic_flip,
        expression_slips.boolean_flip,
        expression_slips.dropped_negation,
        expression_slips.swapped_operands,
        name_slips.undefined_name,
        name_slips.wrong_method,
        name_slips.missing_call,
        name_slips.missing_parentheses,
        name_slips.missing_import,
        statement_slips.dropped_return,
        statement_slips.printed_return,
        statement_slips.early_return,
        statement_slips.dedented_line,
        statement_slips.missing_guard,
        statement_slips.wrong_initial,
        statement_slips.dropped_reverse,
        statement_slips.syntax_slip,
    )
}


@dataclass(frozen=True)
class Mutant:
    """A spoilt program: by which operator, its text, what was changed, and on which line (from 1)."""

    operator: str
    code: str
    changed: str
    line: int


def mutants(code: str) -> tuple[Mutant, ...]:
    """Every mutant of a program, operators in the order of OPERATORS, then by place; no two of equal text.

    A mutant that only continues or only cuts off the program is left out: the score of the shorter text would
    contain the longer one's. So is one with trailing blanks where the program has none. Raises InputError for a
    program that does not parse or has carriage returns.
    """
    source = Source(code)
    seen: set[str] = set()
    found = []
    for name, operator in OPERATORS.items():
        for change in sorted(operator(source), key=lambda each: (each.start, each.end)):
            text = source.edited(change)
            if text in seen or _prefixed(text, code) or _has_new_blanks(text, code):
                continue
            if source.apply(change) is not None:
                seen.add(text)
                found.append(Mutant(name, text, change.changed, source.line(change.start)))
    return tuple(found)


def _prefixed(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _has_new_blanks(text: str, code: str) -> bool:
    old = set(code.split("\n"))
    return any(line != line.rstrip() and line not in old for line in text.split("\n"))
