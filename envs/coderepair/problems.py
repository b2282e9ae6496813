"""Programming problems: a prompt, a reference program, and asserts that the program passes.

The bundled problems are this project's own, in the schema of MBPP (Austin et al. 2021). MBPP itself is read from
a file or from a local copy of its Hugging Face dataset. One record of the schema:

    task_id        whole number, at least 0
    prompt         what the program should do (in the full MBPP this key is `text`)
    code           a program that does it
    test_list      asserts, one a string
    test_imports, test_setup_code   optional: what has to run between the program and the asserts

Programs lose trailing blanks: a blank at the end of one candidate and not of another is a token of its own, and
would be scored with the candidate.
"""

from __future__ import annotations

import ast
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from envs.errors import InputError

BUNDLED = Path(__file__).parent / "data" / "problems.jsonl"
_INSTALL = "install it with pip install 'backfire[datasets]'"
_TYPES = {str: "text", int: "a whole number", list: "a list", dict: "a JSON object", type(None): "null"}

_SHOWN = 20  # faults of a file that are written out; the rest is counted

Record = tuple[str, object]  # where it stands, for messages; what stands there, or why it cannot be read


@dataclass(frozen=True)
class Problem:
    """One problem; `task_id` is written like `mbpp-0003`.

    `tests` are asserts, one statement each; `imports` are the statements that run after the program and before
    the asserts.
    """

    task_id: str
    prompt: str
    code: str
    tests: tuple[str, ...]
    imports: tuple[str, ...]

    @property
    def function(self) -> str:
        """The name that the asserts call most often, of those that the program defines."""
        return self.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The functions and classes that the program has to define and the asserts call, most often called first."""
        return tuple(_called(self.code, self.tests))


@cache
def bundled_problems() -> tuple[Problem, ...]:
    """The project's own problems, in the order of their ids (`code-0001`, ...)."""
    return load_problems(BUNDLED, prefix="code")


def load_problems(path: str | os.PathLike[str], prefix: str = "mbpp") -> tuple[Problem, ...]:
    """Read problems in MBPP's schema, in the order of their numbers; `prefix` opens their ids.

    `path` is a JSON list, a file of JSON lines, a folder written by `datasets.save_to_disk` (with splits or
    without), or a folder of parquet files as the hub has them. Splits are read as one. A folder needs the
    library `datasets`.

    Raises InputError, naming the file and every line, entry or row at fault, for what cannot be read, a missing key, a
    value of the wrong type, a number that occurs twice, code that does not compile, a test that is not one assert, and
    tests that never call what the code defines; also when there is no problem at all.
    """
    place = Path(path)
    records = _folder_records(place) if place.is_dir() else _file_records(place)
    found: dict[int, Problem] = {}
    first_seen: dict[int, str] = {}
    faults: list[str] = []
    for where, record in records:
        try:
            if isinstance(record, InputError):
                raise record
            number, problem = _problem(record, where, prefix)
        except InputError as error:
            faults.append(str(error))
            continue
        if number in found:
            faults.append(
                f"{where}: the task_id {number} is taken already ({first_seen[number]}); remove one of the two."
            )
        found.setdefault(number, problem)
        first_seen.setdefault(number, where)
    if len(faults) == 1:
        raise InputError(f"{place}, {faults[0]}")
    if faults:
        lines = [f"  {fault}" for fault in faults[:_SHOWN]]
        if len(faults) > _SHOWN:
            lines.append(f"  and {len(faults) - _SHOWN} more")
        raise InputError("\n".join([f"The problem file '{place}' has {len(faults)} faults:", *lines]))
    if not found:
        raise InputError(f"'{place}' holds no problems.")
    return tuple(found[number] for number in sorted(found))


def _problem(record: object, where: str, prefix: str) -> tuple[int, Problem]:
    if not isinstance(record, dict):
        raise InputError(f"{where}: a problem is a JSON object, not {_named(record)}.")
    # In a dataset made of unlike records, what a record lacks is null.
    record = {key: value for key, value in record.items() if value is not None}
    number = _value(record, "task_id", int, where)
    if number < 0:
        raise InputError(f"{where}: 'task_id' must be at least 0, not {number}.")
    if number >= 10**9:
        raise InputError(f"{where}: 'task_id' has more than nine digits.")
    prompt = _value(record, "text" if "text" in record and "prompt" not in record else "prompt", str, where)
    code = "\n".join(line.rstrip() for line in _value(record, "code", str, where).split("\n")).rstrip()
    tests = tuple(test.strip() for test in _texts(record, "test_list", where))
    imports = [*_texts(record, "test_imports", where)] if "test_imports" in record else []
    if "test_setup_code" in record:
        imports.append(_value(record, "test_setup_code", str, where))
    imports = [lines.strip() for lines in imports if lines.strip()]
    for what, text in (("prompt", prompt.strip()), ("code", code), ("test_list", tests)):
        if not text:
            raise InputError(f"{where}: '{what}' is empty.")
    _check_sources(code, tests, imports, where)
    return number, Problem(f"{prefix}-{number:04d}", prompt.strip(), code, tests, tuple(imports))


def _check_sources(code: str, tests: tuple[str, ...], imports: list[str], where: str) -> None:
    _compile(code, f"{where}: the code")
    for lines in imports:
        _compile(lines, f"{where}: the statement '{lines}'")
    for test in tests:
        body = _compile(test, f"{where}: the test '{test}'").body
        if len(body) != 1 or not isinstance(body[0], ast.Assert):
            raise InputError(f"{where}: the test '{test}' must be one assert.")
    if not _called(code, tests):
        raise InputError(f"{where}: the tests never call what the code defines.")


def _compile(source: str, what: str) -> ast.Module:
    """The syntax tree of a source that also compiles (`return` outside a function parses, but doesn't)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # an invalid escape in someone else's program is no concern of ours
            tree = ast.parse(source)
            compile(tree, "<problem>", "exec")
    except SyntaxError as error:
        raise InputError(f"{what} does not compile: {error.msg} (line {error.lineno}).") from error
    except (
        ValueError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:  # a null byte, a thousand brackets
        raise InputError(f"{what} does not compile: {error or type(error).__name__}.") from error
    return tree


def _called(code: str, tests: Iterable[str]) -> list[str]:
    """The functions and classes that the program defines and the tests call, most often called first."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    defined = {node.name for node in _compile(code, "code").body if isinstance(node, definitions)}
    calls = Counter(
        node.func.id
        for test in tests
        for node in ast.walk(_compile(test, "test"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined
    )
    return [name for name, _ in calls.most_common()]


def _named(value: object) -> str:
    return _TYPES.get(type(value), f"a {type(value).__name__}")


def _value(record: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in record:
        raise InputError(f"{where}: the key '{key}' is missing.")
    value = record[key]
    if type(value) is not kind:  # True is no number here
        raise InputError(f"{where}: '{key}' must be {_TYPES[kind]}, not {_named(value)}.")
    return _written(value, key, where) if isinstance(value, str) else value


def _written(text: str, key: str, where: str) -> str:
    """The text, which a file can hold: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: '{key}' holds half of a surrogate pair, which is no character."
        ) from error
    return text


def _texts(record: dict[str, Any], key: str, where: str) -> list[str]:
    texts: list[str] = _value(record, key, list, where)
    for text in texts:
        if type(text) is not str:
            raise InputError(f"{where}: '{key}' must hold text only, not {_named(text)}.")
        _written(text, key, where)
    return texts


def _file_records(file: Path) -> Iterator[Record]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"The problem file '{file}' is not UTF-8 text.") from error
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot read the problem file '{file}': {reason}.") from error
    if text.lstrip().startswith("["):
        for number, record in enumerate(_json(text, str(file)), start=1):
            yield f"entry {number}", record
        return
    # Cut at the newline alone: str.splitlines would also cut inside JSON strings (U+2028).
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", _json(line, f"line {number}")
            except InputError as error:
                yield f"line {number}", error


def _json(text: str, where: str) -> Any:
    doubled: list[str] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        doubled.extend(name for name in found if sum(name == one for one, _ in pairs) > 1)
        return found

    try:
        value = json.loads(text, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        spot = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise InputError(f"{where}: not valid JSON: {error.msg} ({spot}).") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise InputError(f"{where}: not readable as JSON: {error}.") from error
    if doubled:
        raise InputError(f"{where}: the key '{doubled[0]}' occurs twice in one object.")
    return value


def _folder_records(folder: Path) -> Iterator[Record]:
    try:
        datasets, parquet = import_module("datasets"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            f"Reading problems from the folder '{folder}' needs the library datasets: {_INSTALL}."
        ) from error
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
    files = [] if saved else _parquet_files(folder)
    try:
        # Parquet straight from the file: `load_dataset` would write a copy into a cache first.
        tables = {file.name: parquet.read_table(file).to_pylist() for file in files}
        if saved:
            data = datasets.load_from_disk(os.fspath(folder))
            tables = dict(data) if isinstance(data, datasets.DatasetDict) else {"": data}
        rows = {name: list(table) for name, table in tables.items()}
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise InputError(f"Cannot read the dataset folder '{folder}': {error}.") from error
    for name, table in rows.items():
        for number, record in enumerate(table, start=1):
            yield f"{name} row {number}".strip(), record


def _parquet_files(folder: Path) -> list[Path]:
    """The parquet files in the folder itself, or else in its one sub-folder that has some."""
    places: dict[Path, list[Path]] = {}
    for file in sorted(folder.rglob("*.parquet")):
        places.setdefault(file.parent, []).append(file)
    if folder in places:
        return places[folder]
    if not places:
        raise InputError(
            f"The folder '{folder}' holds no dataset: neither parquet files nor what save_to_disk writes."
        )
    if len(places) > 1:
        names = ", ".join(place.relative_to(folder).as_posix() for place in places)
        raise InputError(f"The folder '{folder}' holds several datasets ({names}): name one of them.")
    return next(iter(places.values()))
