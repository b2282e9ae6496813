"""The examiner: tests run apart from the program, on values it sends, as if both shared a namespace."""

from __future__ import annotations

import marshal
import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from envs.sandbox import ExecResult, Frame, Limits, Sandbox
from envs.sandbox.bootstrap import payload
from envs.sandbox.examiner import Examiner, Unverifiable
from envs.sandbox.peer import LONGEST, Garbage, Gone, Peer
from tests.hostile_programs import HOLDS


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(wall_s=20.0, cpu_s=10, memory_mb=128), workers=1) as made:
        yield made


def passes(result: ExecResult) -> bool:
    assert result.outcome == "passed", result
    return True


DATA = """
import collections, datetime, decimal, enum, fractions
Pair = collections.namedtuple('Pair', 'left right')
class Level(enum.IntEnum):
    LOW = 1
class Colour(enum.Enum):
    RED = 1
    BLUE = 2
class Stack(list):
    def push(self, value):
        self.append(value)
class Name(str):
    pass
def values():
    return [
        None, True, 7, -(1 << 70), 0.1, float('inf'), 2j, 'ä\\udc80', b'\\xff', bytearray(b'x'), (1, (2,)), [3, [4]],
        {5}, frozenset({6}), {'a': [1], (1, 2): None}, range(3), slice(1, 2), ..., NotImplemented, int, ValueError,
        collections.Counter('aab'), collections.OrderedDict([('b', 1), ('a', 2)]), collections.deque([1, 2], 3),
        collections.defaultdict(list, {1: [2]}), decimal.Decimal('1.50'), fractions.Fraction(1, 3),
        datetime.date(2020, 2, 29), datetime.time(1, 2), datetime.timedelta(1, 2, 3),
        datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.timezone.utc), {1: 2}.keys(), {1: 2}.items(),
    ]
"""


def test_data_comes_as_it_was_made(sandbox: Sandbox) -> None:
    expected = DATA[DATA.index("    return [") + len("    return ") :]
    same = f"expected = {expected.strip()}\nassert repr(values()) == repr(expected)"
    assert passes(sandbox.run(DATA, [same, "assert values()[:-2] == expected[:-2]"]))
    tests = [
        "assert [type(each) for each in values()] == [type(each) for each in expected]",
        "assert values()[24]['new'] == [] and values()[23].maxlen == 3",
        "assert values()[-2] == {1} and values()[-1] == {(1, 2)}",
    ]
    assert passes(sandbox.run(DATA, [same, *tests], ["import collections, datetime, decimal, fractions"]))


def test_classes_of_the_program_made_from_data_keep_their_data_and_their_methods(sandbox: Sandbox) -> None:
    tests = [
        "p = Pair(1, right=[2])\nassert p == (1, [2]) and p.right == [2] and p._fields == ('left', 'right')",
        "assert repr(p) == 'Pair(left=1, right=[2])' and isinstance(p, Pair) and isinstance(p, tuple)",
        "s = Stack([1])\ns.push(2)\nassert s == [1, 2] and len(s) == 2 and s[1] == 2 and isinstance(s, list)",
        "assert Level.LOW == 1 and Level.LOW + 1 == 2 and Name('a') == 'a'",
        "assert Colour.RED is Colour.RED and Colour.RED == Colour.RED and Colour.RED != Colour.BLUE",
        "assert [each.name for each in Colour] == ['RED', 'BLUE'] and Colour['RED'].value == 1 and len(Colour) == 2",
    ]
    assert passes(sandbox.run(DATA, tests))


def test_what_the_program_changes_in_an_argument_shows_in_the_tests_own_object(sandbox: Sandbox) -> None:
    program = """
kept = []
def sort(values):
    values.sort()
    return values
def nest(values):
    values.append([1])
    return values[-1]
def hold(values):
    kept.append(values)
def held():
    return kept[0]
def grow():
    kept[0].append('grown')
def fill(table, seen, row, raw):
    table['x'] = [1]
    seen.add(2)
    row.appendleft(3)
    raw.extend(b'4')
def ring():
    ring = [1]
    ring.append(ring)
    return ring
"""
    tests = [
        "xs = [3, 1, 2]\nassert sort(xs) is xs and xs == [1, 2, 3]",
        "inner = nest(xs)\ninner.append(2)\nassert xs[-1] is inner and sort([[2, 1], [1]]) == [[1], [2, 1]]",
        "xs.append('mine')\nhold(xs)\ngrow()\nassert xs[-2:] == ['mine', 'grown'] and held() is xs",
        "xs.clear()\nassert held() == []",
        "d, s, q, b = {}, set(), deque(), bytearray()\nfill(d, s, q, b)\n"
        "assert (d, s, list(q), b) == ({'x': [1]}, {2}, [3], b'4')",
        "r = ring()\nassert r[1] is r and r[0] == 1",
        "a = [[0] * 2] * 2\nnest(a[0])\nassert a[1] == [0, 0, [1]]",
    ]
    assert passes(sandbox.run(program, tests, ["from collections import deque"]))


def test_generators_functions_and_instances_stay_there_and_can_be_used(sandbox: Sandbox) -> None:
    program = """
import functools
def count(n):
    got = yield 0
    for i in range(n):
        yield (i, got)
def adder(n):
    return lambda x, *, times=1: x + n * times
@functools.lru_cache
def cached(x):
    return x
class Node:
    made = 0
    def __init__(self, value, next=None):
        Node.made += 1
        self.value, self.next = value, next
    def __len__(self):
        return 1 + (len(self.next) if self.next else 0)
    def __iter__(self):
        yield self.value
        yield from self.next or ()
    def __getitem__(self, at):
        return list(self)[at]
    def __str__(self):
        return f'Node {self.value}'
    def __add__(self, other):
        return Node(self.value + other.value)
    @property
    def double(self):
        return 2 * self.value
total = 0
def bump():
    global total
    total += 1
"""
    tests = [
        "g = count(2)\nassert next(g) == 0 and g.send('x') == (0, 'x') and list(g) == [(1, 'x')]",
        "assert count(1) != [0, (0, None)]",
        "assert list(count(1)) == [0, (0, None)] and dict(zip('a', count(0))) == {'a': 0}",
        "assert adder(2)(3) == 5 and adder(2)(3, times=2) == 7 and sorted(map(adder(1), [2, 1])) == [2, 3]",
        "cached(1)\ncached(1)\nassert cached.cache_info().hits == 1",
        "n = Node(1, Node(2))\nassert n.next.value == 2 and n.double == 2 and len(n) == 2 and list(n) == [1, 2]",
        "assert n[1] == 2 and n[0:2] == [1, 2] and str(n) == 'Node 1' and (n + n).value == 2 and Node.made == 3",
        "n.value = 5\nn.next.next = Node(7)\nassert list(n) == [5, 2, 7] and isinstance(n, Node) and type(n) is Node",
        "assert n == n and n != Node(5) and n in [n] and {n: 1}[n] == 1 and not hasattr(n, 'nothing')",
        "assert total == 0\nbump()\nassert total == 1",
    ]
    assert passes(sandbox.run(program, tests))


def test_functions_and_iterators_of_a_test_work_in_the_program(sandbox: Sandbox) -> None:
    program = """
def apply(f, *arguments, **named):
    return f(*arguments, **named)
def same(x):
    return x
def take(n, values):
    return [value for _, value in zip(range(n), values)]
def safe(f):
    try:
        return f()
    except KeyError as error:
        return ('caught', error.args)
"""
    tests = [
        "seen = []\nassert apply(lambda x, y=1: x + y, 2, y=3) == 5 and apply(seen.append, 4) is None and seen == [4]",
        "assert apply(len, 'abc') == 3 and apply(sorted, [2, 1], key=lambda x: -x) == [2, 1]",
        "assert apply(math.sqrt, 4) == 2",
        "f = lambda: 1\nassert same(f) is f and same(len) is len and same(math) is math and apply(apply, same, 3) == 3",
        "it = itertools.count()\nassert take(3, it) == [0, 1, 2] and take(2, (c for c in 'xyz')) == ['x', 'y']",
        "def fail():\n    raise KeyError('k')\nassert safe(fail) == ('caught', ('k',))",
        "class Own(Exception):\n    pass\ndef own():\n    raise Own(1)\n"
        "try:\n    apply(own)\nexcept Own as error:\n    assert error.args == (1,)\nelse:\n    assert False",
    ]
    assert passes(sandbox.run(program, tests, ["import itertools, math"]))
    deep = sandbox.run(program, ["apply(lambda: apply(lambda: 1 / 0))"])
    assert (deep.outcome, deep.exception, deep.message) == (
        "runtime_error",
        "ZeroDivisionError",
        "division by zero",
    )
    functions = [(frame.file, frame.function) for frame in deep.frames]
    assert functions == [
        ("tests.py", "<module>"),
        ("solution.py", "apply"),
        ("tests.py", "<lambda>"),
        ("solution.py", "apply"),
        ("tests.py", "<lambda>"),
    ]


def test_exceptions_of_the_program_are_caught_by_name_and_told_with_their_frames(sandbox: Sandbox) -> None:
    program = """
import json
class Short(ValueError):
    def __init__(self, code):
        super().__init__(f'code {code}')
        self.code = code
def short():
    raise Short(7)
def outer():
    short()
def decode():
    json.loads('no')
def missing():
    {}['k']
"""
    tests = [
        "try:\n    outer()\nexcept Short as error:\n    assert error.code == 7 and str(error) == 'code 7'\n"
        "else:\n    assert 0",
        "for f, kind in ((outer, ValueError), (decode, ValueError), (missing, KeyError), (missing, LookupError)):\n"
        "    try:\n        f()\n    except kind:\n        continue\n    assert 0",
        "outer()",
    ]
    result = sandbox.run(program, tests)
    assert (result.outcome, result.exception, result.message, result.n_passed) == (
        "runtime_error",
        "Short",
        "code 7",
        2,
    )
    assert result.frames == (
        Frame("tests.py", 13, "<module>", "outer()"),
        Frame("solution.py", 10, "outer", "short()"),
        Frame("solution.py", 8, "short", "raise Short(7)"),
    )


def test_what_setup_imports_the_program_has_too_and_what_tests_bind_it_has_not(sandbox: Sandbox) -> None:
    program = "def root(x):\n    return math.sqrt(x)\ndef peek():\n    return secret\n"
    assert passes(sandbox.run(program, ["assert root(4) == 2"], ["import math"]))
    result = sandbox.run(program, ["secret = 3\nassert peek() == 3"])
    assert (result.outcome, result.exception) == ("runtime_error", "NameError")


def test_a_name_of_pythons_is_pythons_unless_it_is_the_programs_to_define(sandbox: Sandbox) -> None:
    program = "def sum(a, b):\n    return a * b\n"
    assert sandbox.run(program, ["assert sum([3, 4]) == 7"]).outcome == "passed"
    assert sandbox.run(program, ["assert sum(3, 4) == 12"], names=["sum"]).outcome == "passed"
    imported = "import math\ndef half(x):\n    return x / 2\n"
    assert passes(
        sandbox.run(imported, ["assert math.isclose(half(1), 0.5)", "from solution import half as h\nh(1)"])
    )


@pytest.mark.parametrize(
    ("program", "test", "sentence"),
    [
        (
            "class P:\n    def __eq__(s, o):\n        return True\n",
            "assert P() == P()",
            "class P for its __eq__",
        ),
        (
            "class P:\n    def __eq__(s, o):\n        return True\n",
            "assert P() != 3",
            "class P for its __eq__",
        ),
        (
            "class P:\n    def __eq__(s, o):\n        return True\n",
            "assert 3 in [P()]",
            "class P for its __eq__",
        ),
        (
            "class P:\n    def __lt__(s, o):\n        return True\n",
            "assert P() < 3",
            "class P for its __lt__",
        ),
        (
            "class P:\n    def __gt__(s, o):\n        return True\n",
            "assert 3 < P()",
            "class P for its __gt__",
        ),
        (
            "class P:\n    def __contains__(s, o):\n        return True\n",
            "assert 3 in P()",
            "for its __contains__",
        ),
        ("class P:\n    def __rsub__(s, o):\n        return 0\n", "assert 3 - P() == 0", "for its __rsub__"),
        (
            "class P:\n    x = 1\ndef f():\n    return P()\n",
            "assert f().x == 1",
            "class P, which no test names, for x",
        ),
        (
            "def f(x):\n    return x\n",
            "class T:\n    pass\nf(T())",
            "what cannot be sent to it: an object of the class T",
        ),
        ("def f():\n    return 'x' * (33 << 20)\n", "assert f()", "cannot be sent: it is too large"),
        (
            "def f():\n    x = []\n    for _ in range(300):\n        x = [x]\n    return x\n",
            "f()",
            "nested too deeply",
        ),
    ],
)
def test_a_test_that_needs_the_programs_word_is_unverifiable(
    program: str, test: str, sentence: str, sandbox: Sandbox
) -> None:
    for body in (test, f"try:\n    {test}\nexcept BaseException:\n    pass" if "\n" not in test else test):
        result = sandbox.run(program, [body, HOLDS])
        assert result.outcome == "unverifiable" and sentence in result.message, result
        assert (result.n_passed, result.frames) == (0, ())


SWALLOWING = """
class Swallowing:
    def __enter__(self):
        return self
    def __exit__(self, *_):
        return True
    def __getitem__(self, at):
        return 'text'
def f(x):
    raise ValueError
"""
OWN_METHODS = """
import enum
class Colour(str, enum.Enum):
    RED = 'red'
class Loud(int):
    def __repr__(self):
        return 'loud'
class Always(str):
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
class Bare:
    'Says what it is.'
    size: int
    def __init__(self):
        self.size = 1
"""


@pytest.mark.parametrize(
    ("program", "test", "outcome"),
    [
        # StopIteration out of a call ends what the test goes through
        (
            "def f(x):\n    raise StopIteration\n",
            "assert all(map(lambda x: f(x) == x, [1, 2]))",
            "unverifiable",
        ),
        ("def f(x):\n    raise StopIteration\n", "for y in map(f, [1]):\n    assert y == 4", "unverifiable"),
        ("def f(x):\n    raise StopIteration\n", "assert next(map(f, [1]), 4) == 4", "unverifiable"),
        (
            "class P:\n    def __str__(self):\n        raise StopIteration\ndef f():\n    return [P()]\n",
            "assert ''.join(map(str, f())) == ''",
            "unverifiable",
        ),
        ("def f(x):\n    raise StopIteration\n", "f(1)", "runtime_error"),
        # a context manager of the program's skips what comes after an error
        (SWALLOWING, "with Swallowing() as s:\n    assert s[0] + 1 == 5", "unverifiable"),
        (SWALLOWING, "with Swallowing():\n    assert f(2) == 4", "unverifiable"),
        (SWALLOWING, "with Swallowing():\n    assert 1 == 2", "unverifiable"),
        # what a test asserts in a function or generator that the program gets
        (
            "def f(g):\n    try:\n        g(3)\n    except AssertionError:\n        return 4\n",
            "def check(x):\n    assert x == 4\nassert f(check) == 4",
            "unverifiable",
        ),
        (
            "def f(values):\n    try:\n        list(values)\n    finally:\n        return 4\n",
            "def values():\n    for i in [1]:\n        assert i == 4\n        yield i\nassert f(values()) == 4",
            "unverifiable",
        ),
        (
            "def f(g):\n    return g(3)\n",
            "def check(x):\n    assert x == 4\nassert f(check) == 4",
            "runtime_error",
        ),
        # a class that the program hands over catches the test's own assertion
        *(
            (
                f"{name}\ndef f(x):\n    return x\n",
                "try:\n    f(-1)\n    assert False\nexcept Wrong:\n    pass",
                "unverifiable",
            )
            for name in ("Wrong = AssertionError", "Wrong = (ValueError, Exception)", "Wrong = BaseException")
        ),
        (
            "class Lib:\n    Wrong = Exception\ndef f(x):\n    return x\n",
            "try:\n    f(-1)\n    assert False\nexcept Lib.Wrong:\n    pass",
            "unverifiable",
        ),
        # classes made from data have methods of their own
        (OWN_METHODS, "assert str(Colour.RED) == 'red'", "test_failure"),
        (OWN_METHODS, "assert str(Colour.RED) == 'Colour.RED' and Colour.RED == 'red'", "passed"),
        (OWN_METHODS, "assert repr(Loud(3)) == '3'", "test_failure"),
        (OWN_METHODS, "assert Always('z') == 'a'", "unverifiable"),
        (OWN_METHODS, "assert Always('z') in {'a': 1}", "unverifiable"),
        # what Python gives every object is the program's to say
        (OWN_METHODS, "assert vars(Bare()) == {}", "test_failure"),
        (
            OWN_METHODS,
            "assert vars(Bare()) == {'size': 1} and Bare.__annotations__ == {'size': int}",
            "passed",
        ),
        (OWN_METHODS, "assert Bare.__doc__ == 'Says what it is.'", "passed"),
        *(
            (
                "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass P:\n    x: int\n",
                f"assert len({{P(1), P(1)}}) == {size}",
                "unverifiable",
            )
            for size in (1, 2)
        ),
        (
            "class M(type):\n    def __instancecheck__(cls, value):\n        return True\n"
            "class Any(metaclass=M):\n    pass\n",
            "assert not isinstance(3, Any)",
            "unverifiable",
        ),
        # arithmetic of a class that no test names
        (
            "class P:\n    def __sub__(self, other):\n        return 0\ndef f(x):\n    return P()\n",
            "assert f(2) - f(1) == 0",
            "unverifiable",
        ),
        ("class B:\n    pass\n", "class T(B):\n    pass\nT()", "unverifiable"),
        ("def f(a, b=2):\n    pass\n", "import inspect\nassert inspect.signature(f)", "unverifiable"),
        (
            "def f(file):\n    return file.read()\n",
            "import io\nassert f(io.StringIO('a')) == 'a'",
            "unverifiable",
        ),
        ("async def f(x):\n    return x\n", "import asyncio\nassert asyncio.run(f(1)) == 1", "unverifiable"),
        (
            "import datetime, zoneinfo\ndef f():\n"
            "    return datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('UTC'))\n",
            "assert f().year == 2020",
            "unverifiable",
        ),
        (
            "import decimal\nclass Money(decimal.Decimal):\n    pass\n",
            "assert isinstance(Money(1), Money)",
            "unverifiable",
        ),
    ],
)
def test_nothing_passes_or_fails_by_what_the_examiner_does_not_see(
    program: str, test: str, outcome: str, sandbox: Sandbox
) -> None:
    result = sandbox.run(program, [test, HOLDS])
    assert result.outcome == outcome, result
    assert result.n_passed == (2 if outcome == "passed" else 0)


KEEPING = """
import contextlib, dataclasses, json, re
class Emitter:
    def __init__(self):
        self.hooks, self.sent = [], {}
    def on(self, hook):
        self.hooks.append(hook)
    def emit(self, value):
        for hook in self.hooks:
            hook(value)
@dataclasses.dataclass(frozen=True)
class Fixed:
    x: int
@contextlib.contextmanager
def noting(log):
    log.append('in')
    yield 5
    log.append('out')
def load(text):
    return json.loads(text)
def compiled(text):
    return re.compile(text)
def chained():
    try:
        {}['k']
    except KeyError as error:
        raise ValueError('v') from error
def missing():
    open('missing')
class Down:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return self
    def __next__(self):
        if not self.n:
            raise StopIteration
        self.n -= 1
        return self.n
"""


@pytest.mark.parametrize(
    "test",
    [
        "e = Emitter()\nseen = []\ne.on(lambda v: seen.append(v))\ne.emit(1)\nassert seen == [1]\n"
        "e.emit(2)\nassert seen == [1, 2]",
        "e = Emitter()\ne.hooks.append(1)\ne.sent['k'] = [2]\ne.sent['k'].append(3)\n"
        "assert e.hooks == [1] and e.sent == {'k': [2, 3]}",
        "class Kept:\n    value = load('[1]')\n    size = Fixed(2).x\nassert Kept.value == [1] and Kept.size == 2",
        "log = []\nwith noting(log) as x:\n    assert x == 5 and log == ['in']\nassert log == ['in', 'out']",
        "try:\n    load('no')\nexcept json.JSONDecodeError as error:\n    assert error.pos == 0\nelse:\n    assert 0",
        "try:\n    compiled('(')\nexcept re.error as error:\n    assert error.pos == 0\nelse:\n    assert 0",
        "f = Fixed(1)\ntry:\n    f.x = 2\nexcept dataclasses.FrozenInstanceError:\n    assert f.x == 1\n"
        "else:\n    assert 0",
        "try:\n    chained()\nexcept ValueError as error:\n    assert isinstance(error.__cause__, KeyError)",
        "try:\n    missing()\nexcept OSError as error:\n    assert error.filename == 'missing' in str(error)",
        "assert list(Down(2)) == [1, 0] and next(Down(0), 'end') == 'end'\n"
        "try:\n    Down(0).__next__()\nexcept StopIteration:\n    pass\nelse:\n    assert 0",
    ],
)
def test_what_right_programs_do_is_seen(test: str, sandbox: Sandbox) -> None:
    assert passes(sandbox.run(KEEPING, [test], ["import dataclasses, json, re", "import solution"]))


def test_a_million_values_travel_in_time(sandbox: Sandbox) -> None:
    program = "def same(x):\n    return list(x)\ndef lists(n):\n    return [[i] for i in range(n)]\n"
    tests = [
        "xs = list(range(200_000))\nfor _ in range(3):\n    assert same(xs) == xs",
        "fs = [x / 3 for x in range(200_000)]\nassert same(fs) == fs",
        "ls = lists(20_000)\nassert ls[-1] == [19_999]\nls[5].append(1)\nassert same(ls[5]) == [5, 1]",
        "assert same([1 << 62] * 20 + [True]) == [1 << 62] * 20 + [True]",
        "assert same((1,) * 20 + (1.0,))[-1].hex() == '0x1.0000000000000p+0'",
    ]
    assert passes(sandbox.run(program, tests))


def test_output_of_both_comes_in_order(sandbox: Sandbox) -> None:
    program = "print('start')\ndef f():\n    print('program')\n"
    result = sandbox.run(program, ["print('test')\nf()\nprint('again')", "f()"])
    assert result.stdout == "start\ntest\nprogram\nagain\nprogram\n"


SPEAKING = """
import os
def number(n):
    return n.to_bytes(4, 'little')
def text(t):
    return b's' + number(len(t)) + t
def say(body):
    data = len(body).to_bytes(8, 'little') + body
    while data:
        data = data[os.write(3, data):]
def read(n):
    data = b''
    while len(data) < n:
        data += os.read(3, n - len(data))
    return data
NOTHING = number(0)
FINE = b'R' + NOTHING + number(1) + b'0' + NOTHING
RAISED = b'X' + NOTHING + number(4) + b'0' + text(b'ValueError') + text(b'') + b't' + NOTHING + NOTHING
NO_NAME = b'N' + NOTHING * 3
say(FINE)
while True:
    asked = read(int.from_bytes(read(8), 'little'))[:1]
    say(ODD if asked == b'WHEN' else FINE)
"""


@pytest.mark.parametrize("when", ["M", "E"])
@pytest.mark.parametrize("odd", ["RAISED", "NO_NAME"])
def test_a_program_that_answers_amiss_gets_an_outcome(when: str, odd: str, sandbox: Sandbox) -> None:
    program = SPEAKING.replace("ODD if", f"{odd} if").replace("WHEN", when)
    assert sandbox.run(program, [HOLDS], ["import math"]).outcome == "exited"


# What arrives from the program's end is read strictly


def ends() -> tuple[Examiner, Peer]:
    """Both ends of a channel: ours, and the one that runs in the program's interpreter, started as there."""
    ours, theirs = socket.socketpair()
    inside: dict[str, Any] = {"__name__": "inside"}
    for code in payload()[1:]:
        exec(marshal.loads(code), inside)
    service: Peer = inside["Service"]({})
    service.channel = theirs.detach()
    return Examiner(ours.detach(), None, []), service


def close(*peers: Peer) -> None:
    for peer in peers:
        os.close(peer.channel)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(8, "little") + body


ZERO, ONE = bytes(4), (1).to_bytes(4, "little")


@pytest.mark.parametrize(
    "data",
    [
        (LONGEST + 1).to_bytes(8, "little"),
        bytes(8),
        framed(b"Q" + ZERO + ZERO + ZERO),  # no such kind of message
        framed(b"R" + ZERO + ZERO + ZERO),  # an answer without a value
        framed(b"R" + ZERO + ONE + b"i" + ONE + b"\x05" + ZERO + b"more"),
        framed(b"R" + ZERO + ONE + b"i" + b"\xff" * 4 + b"\x05" + ZERO),
        framed(b"R" + ZERO + ONE + b"t" + b"\xff" * 4 + ZERO),
        framed(b"R" + ZERO + ONE + b"#" + ONE + ZERO),  # an object never heard of
        framed(b"R" + ZERO + ONE + b"?" + ZERO),
        framed(b"R" + ZERO + ONE + b"&" + ZERO),  # an address: only tests have that
        framed(b"R" + ZERO + ONE + b"@s" + (4).to_bytes(4, "little") + b"eval" + ZERO),
        framed(
            b"R" + ZERO + ONE + b"+" + (2).to_bytes(4, "little") + b"L0" + ZERO + ZERO
        ),  # the examiner's number
        framed(b"R" + ZERO + ONE + b"+" + ONE + b"p0" + ZERO + ZERO),
        framed(b"R" + ZERO + ONE + b"+" + ONE + b"o0" + ZERO),  # an instance of nothing
        framed(b"R" + ZERO + ONE + b"z" + ONE + b"+" + ONE + b"L0" + ZERO + ZERO),  # a list in a frozen set
        framed(b"R" + ZERO + ONE + b"f" + ONE + b"x" + ZERO),
        framed(b"R" + ZERO + ONE + b"s" + ONE + b"\xff" + ZERO),
        framed(b"R" + ZERO + ONE + b"0" + ONE + ONE),  # news of no object
        framed(b"R" + ZERO + ONE + b"t" + ONE + b"t" * 1 + (ONE + b"t") * 300 + ZERO + ZERO),
        framed(
            b"R"
            + ZERO
            + ONE
            + b"q"
            + (2).to_bytes(4, "little")
            + b"i"
            + ONE
            + b"\x01i"
            + ONE
            + b"\x00"
            + ZERO
        ),
        framed(b"X" + ZERO + (4).to_bytes(4, "little") + b"0" * 4 + ZERO)[:-1],
    ],
)
def test_what_is_no_message_ends_the_conversation(data: bytes) -> None:
    examiner, service = ends()
    os.write(service.channel, data)
    os.close(service.channel)
    with pytest.raises((Garbage, Gone)):
        examiner.hear(b"R", b"X")
    assert examiner.lost and examiner.why_not
    with pytest.raises(Unverifiable):
        examiner.request(b"G", "f")
    close(examiner)


def test_random_damage_never_becomes_anything_but_a_value_or_the_end() -> None:
    """Bytes flipped in real messages: what is read is exact built-in types, or nothing."""
    rng = random.Random(0)
    value = [1, "two", (3.0, {"k": [4]}), {5}, b"6", ValueError("7"), None, [[]], -8]
    plain = {
        int,
        str,
        tuple,
        float,
        dict,
        list,
        set,
        bytes,
        type(None),
        bool,
        bytearray,
        frozenset,
        complex,
        range,
    }
    examiner, service = ends()
    service.send(b"R", value)
    whole = os.read(examiner.channel, 1 << 16)
    close(examiner, service)
    kinds = set()
    for _ in range(400):
        body = bytearray(whole[8:])
        for _ in range(rng.choice((1, 1, 2, 8))):
            body[rng.randrange(len(body))] = rng.randrange(256)
        examiner, service = ends()
        os.write(service.channel, framed(bytes(body)))
        os.close(service.channel)
        try:
            _, found = examiner.hear(b"R")
        except (Garbage, Gone):
            kinds.add("end")
        else:
            kinds.add("value")
            waiting = [found[0]]
            while waiting:
                each = waiting.pop()
                assert type(each) in plain or isinstance(each, (BaseException, type)), each
                waiting += each if type(each) in (list, tuple, set) else ()
        close(examiner)
    assert kinds == {"end", "value"}


def test_only_what_a_test_handed_over_can_be_called_from_there() -> None:
    examiner, service = ends()
    examiner.space["f"] = lambda: called.append(1)
    called: list[int] = []

    def answer() -> None:
        tag, values = service.receive()
        assert tag == b"C"
        for target in (values[0], values[1]):
            service.send(b"c", target, (), (), ())

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(Garbage):
        examiner.call(len, ([1],), {})
    thread.join()
    assert called == []
    close(examiner, service)
