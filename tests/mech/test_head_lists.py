"""Head lists come back as they went, in all three forms, and whatever is wrong with one is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mech.errors import InputError
from mech.head_scores.head_lists import FORMS, Form, ScoredHeads, best_first, head_list_text, read_head_list
from mech.heads import Head, HeadSet

SCORED: ScoredHeads = [(Head(18, 6), 0.1 + 0.2), (Head(2, 0), -1e-17), (Head(17, 3), 3.0)]
SIZE = (30, 9)


def written(folder: Path, contents: Any) -> Path:
    path = folder / "list.json"
    path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_back(form: Form, tmp_path: Path) -> None:
    found = read_head_list(written(tmp_path, head_list_text(SCORED, form, "copying")), *SIZE)
    assert found == (sorted(SCORED) if form == "heads" else SCORED)  # to the last bit of every score
    assert [type(score) for _, score in found] == [float] * 3
    again = head_list_text(found, form, "copying")
    assert again == head_list_text(SCORED, form, "copying") and again.endswith(
        "}\n" if form != "list" else "]\n"
    )


def test_the_forms_are_those_that_others_write() -> None:
    texts = {form: json.loads(head_list_text(SCORED[:2], form, "copying")) for form in FORMS}
    listed = [{"layer": 18, "head": 6, "score": 0.1 + 0.2}, {"layer": 2, "head": 0, "score": -1e-17}]
    assert texts["list"] == listed
    assert texts["map"] == {"18-6": 0.1 + 0.2, "2-0": -1e-17}
    sha256 = HeadSet([Head(2, 0), Head(18, 6)]).sha256
    assert texts["heads"] == {"by": "copying", "k": 2, "sha256": sha256, "heads": listed[::-1]}


def test_scores_of_several_tests_are_averaged(tmp_path: Path) -> None:
    assert read_head_list(written(tmp_path, {"0-1": [0.5, 1, 0], "3-2": 2}), *SIZE) == [
        (Head(0, 1), 0.5),
        (Head(3, 2), 2.0),
    ]


def test_more_fields_than_needed_are_left_aside(tmp_path: Path) -> None:
    contents = [{"layer": 1, "head": 0, "score": 1, "name": "L1H0"}]
    assert read_head_list(written(tmp_path, contents), *SIZE) == [(Head(1, 0), 1.0)]


def test_the_best_come_first_and_ties_in_order() -> None:
    scored = [(Head(1, 0), 0.5), (Head(0, 1), 0.5), (Head(2, 2), 0.9), (Head(0, 0), -1.0)]
    assert [str(head) for head, _ in best_first(scored)] == ["L2H2", "L0H1", "L1H0", "L0H0"]


def entry(**fields: Any) -> list[dict[str, Any]]:
    return [{"layer": 1, "head": 2, "score": 0.5, **fields}]


FROZEN = {"by": "copying", "k": 1, "sha256": HeadSet([Head(1, 2)]).sha256}


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (entry(layer=30), "L30H2 does not exist: the model has layers 0-29 and heads 0-8"),
        (entry(head=9), "L1H9 does not exist"),
        ({"1-9": 0.5}, "L1H9 does not exist"),
        (entry() + entry(score=0.1), "names L1H2 twice"),
        ('{"1-2": 0.5, "1-2": 0.6}', "the field '1-2' occurs twice"),
        ('{"1-2": 0.5, "01-2": 0.6}', "names L1H2 twice"),
        ('[{"layer": 1, "head": 2, "score": NaN}]', r"the field '\[0\].score' is no finite number"),
        ('{"1-2": Infinity}', "the field '1-2' is no finite number"),
        ('{"1-2": [1, -Infinity]}', r"the field '1-2\[1\]' is no finite number"),
        ({"1-2": []}, "the field '1-2' must not be empty"),
        ({"1-2": "0.5"}, r"the field '1-2\[0\]' must be a number"),
        (entry(score=True), r"the field '\[0\].score' must be a number"),
        (entry(score=None), r"the field '\[0\].score' must be a number"),
        (entry(layer=1.0), r"the field '\[0\].layer' must be an integer"),
        (entry(head=-1), r"the field '\[0\].head' must be greater than or equal to 0"),
        (entry(layer=True), r"the field '\[0\].layer' must be an integer"),
        ([{"layer": 1, "score": 2}], r"the field '\[0\].head' is missing"),
        ([{"layer": 1, "head": 2}], r"the field '\[0\].score' is missing"),
        (entry() + ["L1H2"], r"the field '\[1\]' must be an object"),
        ({"L1H2": 0.5}, "'L1H2' is not a head: write it like 18-6"),
        ({"1-2-3": 0.5}, "'1-2-3' is not a head"),
        ([], "names no head"),
        ({}, "names no head"),
        ({**FROZEN, "heads": []}, "names no head"),
        ("7", r'write \[{"layer": 18'),
        ({**FROZEN, "heads": {"1-2": 1}}, "the field 'heads' must be a list"),
        (entry(layer=True, head="x"), r"\[0\].layer' must be an integer; the field '\[0\].head' must be"),
        (entry(score=10**400), "number"),
        ('[{"layer": 1, "head": 2, "score": 1e999}]', "no finite number"),
        ('[{"layer": 1, "layer": 2, "head": 2, "score": 1}]', "'\\[0\\].layer' occurs twice"),
        ('{"%s-2": 1}' % ("9" * 5000), "is not a head"),
        ({**FROZEN, "heads": entry(head=3)}, "changed after it was frozen"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\x00", "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_in_a_sentence(contents: Any, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, contents)
    with pytest.raises(InputError, match=said) as found:
        read_head_list(path, *SIZE)
    assert str(path) in str(found.value) and "\n" not in str(found.value)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=f"Cannot read the head list '{path}'"):
            read_head_list(path, *SIZE)
    (tmp_path / "latin").write_bytes(b'{"1-2": "\xe9"}')
    with pytest.raises(InputError, match="is not JSON"):
        read_head_list(tmp_path / "latin", *SIZE)


@pytest.mark.parametrize(
    ("scored", "said"),
    [
        ([(Head(1, 2), math.nan)], "the score of L1H2 is nan"),
        ([(Head(1, 2), math.inf)], "the score of L1H2 is inf"),
        ([(Head(1, 2), 1.0), (Head(1, 2), 2.0)], "names a head twice"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_list_that_could_not_be_read_is_not_written(form: Form, scored: ScoredHeads, said: str) -> None:
    with pytest.raises(InputError, match=said):
        head_list_text(scored, form)
