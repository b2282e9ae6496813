"""What the program's process and the examiner's say to each other: values as plain data, never code.

Both ends of the channel use this file: `inside` in the program's interpreter, `examiner` in the process that runs
the tests. A message is eight bytes of length, one byte that says what it is, some values, and the news of the
objects that both ends know:

- None, truth values, numbers, text, bytes, tuples, frozen sets, ranges and what is made of them travel by value;
- lists, dictionaries, sets, byte arrays and deques have a number. Their content is sent along with a message
  whenever it changed at the sender's end, so that what the program does to an argument shows in the test's own list,
  and an object that comes back is the same object;
- everything else stays where it is: the other end gets its number and a description of its class (a handle).

The examiner's end is strict: of what arrives, only the kinds below are built, of exact types, in bounded depth and
size. Nothing that arrives is evaluated, imported or called there.

This file runs in the program's interpreter and imports nothing that a bare interpreter has not imported.
"""

from __future__ import annotations

import sys
from _collections_abc import Callable, Iterable
from os import read, write  # a program may replace what modules hold

TYPE_CHECKING = False  # importing it from typing would double the interpreter's start
if TYPE_CHECKING:
    from typing import Any
else:
    Any = object

SOLUTION, TESTS, SETUP = "solution.py", "tests.py", "setup.py"
FRAMES_KEPT = 10  # of a traceback, at either end
LONGEST_NAME, LONGEST_MESSAGE = 200, 4000
RESERVE = 16 << 20  # bytes above the limit of memory, for the report of a failure

# Special methods of a class that the other end has to know of, since Python looks for them in the class.
_OPERATORS = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift".split()
SPECIAL = frozenset(
    f"__{name}__"
    for name in (
        *"eq ne lt le gt ge contains bool len iter next reversed getitem setitem delitem call enter exit".split(),
        *"str repr format int float complex index bytes round trunc floor ceil abs neg pos invert".split(),
        *(prefix + name for name in _OPERATORS for prefix in ("", "r", "i")),
    )
)

DEEPEST = 100  # values inside values
LONGEST = 32 << 20  # bytes of a message
MOST_OBJECTS = 1 << 20  # that both ends know at a time

# How each type that travels by value, or is kept alike at both ends, is written.
_BASIC: dict[type, bytes] = {
    int: b"i",
    float: b"f",
    complex: b"c",
    str: b"s",
    bytes: b"b",
    tuple: b"t",
    frozenset: b"z",
    range: b"r",
    slice: b"l",
    list: b"L",
    dict: b"D",
    set: b"S",
    bytearray: b"B",
}
# The same for types of modules that a program may not have loaded.
_LATE = (
    ("_collections", "deque", b"Q"),
    ("_collections", "OrderedDict", b"O"),
    ("_collections", "defaultdict", b"X"),
    ("collections", "Counter", b"C"),
    ("decimal", "Decimal", b"d"),
    ("fractions", "Fraction", b"q"),
    ("datetime", "date", b"j"),
    ("datetime", "time", b"h"),
    ("datetime", "datetime", b"w"),
    ("datetime", "timedelta", b"v"),
    ("datetime", "timezone", b"y"),
)
_MODULES = {code: (module, name) for module, name, code in _LATE}
_TYPES = {code: kind for kind, code in _BASIC.items()}
CONTAINERS = b"LDSBQOXC"
_TIMES = (b"v", b"y")  # what a time may be made of, besides numbers
_VIEWS: dict[type, bytes] = {type({}.keys()): b"k", type({}.items()): b"m"}
_NONE, _TRUE, _FALSE, _KNOWN, _NEW, _VIEW, _SHARED = b"0", b"1", b"-", b"#", b"+", b"~", b"@"


# Many whole numbers or many floats are one text: ten times as fast. No count of values is as large as its mark.
_MANY, _PACKED, _PACKED_BYTES = 16, 0xFFFFFFFF, b"\xff" * 4
_FITTING = 1 << 62


class Unsendable(Exception):
    """A value that cannot travel, with the reason in words."""


class Garbage(BaseException):
    """What arrived is not of this language. No test can take it for an exception of the program's."""


class Gone(BaseException):
    """The other end is closed."""


# What may come of reading what is not of this language (Unsendable: more objects than there may be).
_OF_NONSENSE = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    Unsendable,
)


class Peer:
    """One end of the channel. `first`: the number of its first object; numbers of one end are odd, of the other even.

    What is known to both ends: `objects`, number → object, and what was last said of its content.
    """

    def __init__(self, channel: int, first: int) -> None:
        self.channel = channel
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.said: dict[int, bytes] = {}
        self.dropped: list[int] = []
        self.shared = shared_names()
        self.shared_ids = {id(value): name for name, value in self.shared.items()}
        self.own = first & 1
        self.next = first
        self._fresh: list[int] = []
        self._data = b""
        self._at = 0

    # Messages

    def send(self, tag: bytes, *values: Any) -> None:
        """Write one message: what it is, its values, and the news. Raises Unsendable, and then nothing was said."""
        self._fresh = []
        try:
            body = bytearray(tag)
            _number(body, len(self.dropped))
            for number in self.dropped:
                _number(body, number)
            _number(body, len(values))
            for value in values:
                self.put(body, value, 0)
            self._put_news(body)
            if len(body) > LONGEST:
                raise Unsendable("it is too large")
        except BaseException as error:
            self._undo(0)
            if isinstance(error, RecursionError):
                raise Unsendable("it is nested too deeply") from None
            raise
        self.dropped = []
        self.write(len(body).to_bytes(8, "little") + body)

    def receive(self) -> tuple[bytes, list[Any]]:
        """Read one message; Gone at the end of the channel, Garbage for what is none."""
        size = int.from_bytes(self.read(8), "little")
        if size > LONGEST or size < 1:
            raise Garbage("a message of an impossible size")
        self._data, self._at = self.read(size), 0
        try:
            tag = self._take(1)
            for _ in range(self._number()):
                self.forget(self._number())
            self._fresh = []
            values = [self.get(0) for _ in range(self._number())]
            for _ in range(self._number()):
                self._get_news()
            if self._at != size:
                raise Garbage("a message with an appendix")
            for number in self._fresh:  # what was just said of them, for comparison with what they become
                if number in self.said:
                    self.said[number] = self._content(number)
        except _OF_NONSENSE as error:
            raise Garbage(f"{type(error).__name__}: {error}") from error
        finally:
            self._data = b""
        return tag, values

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            try:
                view = view[write(self.channel, view) :]
            except OSError:
                raise Gone from None

    def read(self, size: int) -> bytes:
        """So many bytes."""
        parts = []
        while size:
            parts.append(self.read_some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def read_some(self, most: int) -> bytes:
        """At least one byte."""
        try:
            part = read(self.channel, min(most, 1 << 20))
        except OSError:
            raise Gone from None
        if not part:
            raise Gone
        return part

    # Objects that both ends know

    def number_of(self, value: Any) -> int | None:
        """Its number, if both ends know it."""
        return self.numbers.get(id(value))

    def enter(self, value: Any) -> int:
        """A new number of this end for an object."""
        number, self.next = self.next, self.next + 2
        self.keep(number, value)
        return number

    def keep(self, number: int, value: Any) -> None:
        """Remember an object under a number."""
        if len(self.objects) >= MOST_OBJECTS:
            raise Unsendable("there are too many objects")
        self.objects[number] = value
        self.numbers[id(value)] = number
        self._fresh.append(number)

    def forget(self, number: int) -> None:
        """Let go of an object; of an unknown number there is nothing to let go."""
        if number in self.objects:
            self.numbers.pop(id(self.objects.pop(number)), None)
        self.said.pop(number, None)

    def attempt(self, value: Any, depth: int) -> bytes | None:
        """A value as it would be written; None if it cannot travel, and then nothing was entered for it."""
        out, mark = bytearray(), len(self._fresh)
        try:
            self.put(out, value, depth)
        except (Unsendable, RecursionError):
            self._undo(mark)
            return None
        return bytes(out)

    def _undo(self, mark: int) -> None:
        """Let go of what was entered since; its numbers are not used again."""
        for number in self._fresh[mark:]:
            self.forget(number)
        del self._fresh[mark:]

    def _content(self, number: int) -> bytes:
        """What a container holds, as it would be written; objects in it that are new get numbers."""
        out, value = bytearray(), self.objects[number]
        self.put_content(out, code_of(base_of(type(value))), value, 0)
        return bytes(out)

    def has_changed(self, number: int) -> bool:
        """Whether a container's content is not what was last told or heard of it; nothing is entered or told."""
        if number not in self.said:
            return False
        mark = len(self._fresh)
        try:
            return self._content(number) != self.said[number]
        except (Unsendable, RecursionError):
            return True
        finally:
            self._undo(mark)

    def _put_news(self, out: bytearray) -> None:
        """The content of every container that changed since it was last told or heard of."""
        news: list[tuple[int, bytes]] = []
        fresh = set(self._fresh)
        for number in list(self.said):
            before = self.said[number]
            if number not in fresh and (now := self._content(number)) != before:
                news.append((number, now))
        _number(out, len(news))
        for number, now in news:
            _number(out, number)
            out += now
            self.said[number] = now

    def _get_news(self) -> None:
        number = self._number()
        if number not in self.said:
            raise Garbage("news of no container")
        value = self.objects[number]
        start = self._at
        self._fill(code_of(base_of(type(value))), value, 0)
        self.said[number] = self._data[start : self._at]
        self._fresh.append(number)

    # Writing

    def put(self, out: bytearray, value: Any, depth: int) -> None:
        """Write a value."""
        if depth > DEEPEST:
            raise Unsendable("it is nested too deeply")
        kind = type(value)
        if value is None:
            out += _NONE
        elif kind is bool:
            out += _TRUE if value else _FALSE
        elif (number := self.numbers.get(id(value))) is not None:
            out += _KNOWN
            _number(out, number)
        elif kind in _VIEWS:
            out += _VIEW + _VIEWS[kind]
            self._put_all(out, list(value), depth)
        elif not (code := code_of(kind)):
            self.put_other(out, value, depth)
        elif code in CONTAINERS:
            out += _NEW
            self.put_new(out, value, code, depth)
        else:
            out += code
            self.put_content(out, code, value, depth)

    def put_new(self, out: bytearray, value: Any, code: bytes, depth: int) -> None:
        """Write an object that gets a number, and its content, if it has one."""
        number = self.enter(value)
        _number(out, number)
        out += code
        self.put_class(out, value, code, depth)
        start = len(out)
        self.put_content(out, code, value, depth)
        if code in CONTAINERS:
            self.said[number] = bytes(out[start:])

    def put_class(self, out: bytearray, value: Any, code: bytes, depth: int) -> None:
        """Write the class of an object if it is a program's own, else nothing of it."""
        self.put(out, None, depth)

    def put_other(self, out: bytearray, value: Any, depth: int) -> None:
        """Write what is no data: the name of what both ends have, else an object that gets a number."""
        name = self.shared_ids.get(id(value), "")
        if not name and issubclass(type(value), type) and (code := code_of(value)):
            name = ".".join(_MODULES[code])
        if name:
            out += _SHARED
            self.put(out, name, depth)
        else:
            out += _NEW
            self.put_new(out, value, self.kind_of(value), depth)

    def kind_of(self, value: Any) -> bytes:
        """How an object that is no data is written."""
        raise NotImplementedError

    def _put_all(self, out: bytearray, values: Iterable[Any], depth: int) -> None:
        values = list(values)
        if len(values) >= _MANY and (packed := _packed(values)):
            _number(out, _PACKED)
            out += packed[:1]
            return _bytes(out, packed[1:])
        _number(out, len(values))
        for value in values:
            self.put(out, value, depth + 1)

    def put_content(self, out: bytearray, code: bytes, value: Any, depth: int) -> None:
        """Write what a value holds, by the methods of its plain type, whatever its own class says."""
        if code == b"i":
            size = (int.bit_length(value) >> 3) + 1
            _bytes(out, int.to_bytes(value, size, "little", signed=True))
        elif code == b"f":
            _bytes(out, float.hex(value).encode())
        elif code == b"c":
            number = complex.__add__(value, 0j) if type(value) is not complex else value
            _bytes(out, float.hex(number.real).encode())
            _bytes(out, float.hex(number.imag).encode())
        elif code == b"s":
            _bytes(out, str.encode(value, "utf-8", "surrogatepass"))
        elif code in b"bB":
            _bytes(out, bytes(memoryview(value)))
        elif code in b"tL":
            self._put_all(out, (tuple if code == b"t" else list).__iter__(value), depth)
        elif code in b"zS":
            self._put_all(out, (frozenset if code == b"z" else set).__iter__(value), depth)
        elif code in b"rl":
            self._put_parts(out, (value.start, value.stop, value.step), depth)
        elif code in b"DOXC":
            if code == b"X":
                self.put(out, value.default_factory, depth + 1)
            base = type_of(code) if code in b"OX" else dict
            pairs = list(base.items(value))
            _number(out, len(pairs))
            for key, each in pairs:
                self.put(out, key, depth + 1)
                self.put(out, each, depth + 1)
        elif code == b"Q":
            self.put(out, value.maxlen, depth)
            self._put_all(out, type_of(code).__iter__(value), depth)
        elif code == b"d":
            self.put(out, type_of(code).__str__(value), depth)
        else:
            self._put_parts(out, _parts(code, value), depth)

    def _put_parts(self, out: bytearray, parts: tuple[Any, ...], depth: int) -> None:
        if not all(map(_may_be_part, parts)):
            raise Unsendable("a slice or a time is made of more than numbers and fixed time zones")
        self._put_all(out, parts, depth)

    # Reading

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise Garbage("a message that ends early")
        return self._data[start : self._at]

    def _number(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _bytes(self) -> bytes:
        return self._take(self._number())

    def get(self, depth: int) -> Any:
        """Read a value."""
        if depth > DEEPEST:
            raise Garbage("nested too deeply")
        code = self._take(1)
        if code == _NONE:
            return None
        if code in (_TRUE, _FALSE):
            return code == _TRUE
        if code == _KNOWN:
            number = self._number()
            if number not in self.objects:
                raise Garbage("an unknown object")
            return self.objects[number]
        if code == _NEW:
            return self._get_new(depth)
        if code == _VIEW:
            return self._get_view(depth)
        if code == _SHARED:
            return self.get_shared(self.get(depth))
        if code in CONTAINERS or not (code in _MODULES or code in _TYPES):
            raise Garbage(f"a value of kind {code!r}")
        return self.get_plain(code, depth)

    def get_shared(self, name: Any) -> Any:
        """What both ends have under a name."""
        if type(name) is str and name in self.shared:
            return self.shared[name]
        for code, parts in _MODULES.items():
            if name == ".".join(parts):
                return type_of(code)
        raise Garbage("an unknown name")

    def _get_new(self, depth: int) -> Any:
        number = self._number()
        code = self._take(1)
        if number in self.objects or number & 1 == self.own:
            raise Garbage("a number that is taken")
        kind = self.get_kind(depth)
        if code not in CONTAINERS:
            return self.get_object(number, code, kind, depth)
        value = self.make(type_of(code) if kind is None else kind, code)
        self.keep(number, value)
        self.said[number] = b""
        self._fill(code, value, depth)
        return value

    def get_kind(self, depth: int) -> Any:
        """Read what says of which class an object is."""
        return self.get(depth)

    def make(self, kind: type, code: bytes) -> Any:
        """An empty container."""
        return kind()

    def _get_view(self, depth: int) -> Any:
        code = self._take(1)
        items = self._get_all(depth)
        return dict.fromkeys(items).keys() if code == b"k" else dict(items).items()

    def get_object(self, number: int, code: bytes, kind: Any, depth: int) -> Any:
        """Read the rest of a new object that is no container."""
        raise Garbage(f"an object of kind {code!r}")

    def _get_all(self, depth: int) -> list[Any]:
        if self._data.startswith(_PACKED_BYTES, self._at):
            self._at += len(_PACKED_BYTES)
            kind, texts = self._take(1), self._bytes().decode("ascii").split(" ")
            if kind not in (b"i", b"f"):
                raise Garbage("numbers of no kind")
            return list(map(int, texts)) if kind == b"i" else list(map(float.fromhex, texts))
        return [self.get(depth + 1) for _ in range(self._count())]

    def _count(self) -> int:
        number = self._number()
        if number > len(self._data) - self._at:  # every value takes a byte
            raise Garbage("more values than there is room for")
        return number

    def get_plain(self, code: bytes, depth: int) -> Any:
        """Read the content of a value that travels by value."""
        if code == b"i":
            return int.from_bytes(self._bytes(), "little", signed=True)
        if code == b"f":
            return float.fromhex(self._bytes().decode("ascii"))
        if code == b"c":
            return complex(*(float.fromhex(self._bytes().decode("ascii")) for _ in range(2)))
        if code == b"s":
            return self._bytes().decode("utf-8", "surrogatepass")
        if code == b"b":
            return self._bytes()
        kind = type_of(code)
        if code == b"d":
            text = self.get(depth)
            if type(text) is not str:
                raise Garbage("a number that is no text")
            return kind(text)
        values = self._get_all(depth)
        if code in b"tz":
            return kind(values)
        if not all(map(_may_be_part, values)):
            raise Garbage("parts of a wrong type")
        if code == b"y":
            return _exactly(kind(*values[: 2 if values[1] is not None else 1]), kind)
        if code in b"hw":
            *values, fold = values
            return _exactly(kind(*values, fold=fold), kind)
        return _exactly(kind(*values), kind)

    def _fill(self, code: bytes, value: Any, depth: int) -> None:
        """Read a container's content into it, by the methods of its plain type."""
        base = type_of(code)
        if code == b"B":
            data = self._bytes()
            bytearray.__setitem__(value, slice(None), data)
        elif code == b"L":
            list.__setitem__(value, slice(None), self._get_all(depth))
        elif code == b"S":
            items = self._get_all(depth)
            set.clear(value)
            set.update(value, items)
        elif code == b"Q":
            most = self.get(depth)
            if (most is not None and type(most) is not int) or not isinstance(value, base):
                raise Garbage("a bound that is no number")
            items = self._get_all(depth)
            base.__init__(value, items, most)
        else:
            if code == b"X":
                factory = self.get(depth + 1)
                if not (factory is None or callable(factory)):
                    raise Garbage("a factory that is none")
                value.default_factory = factory
            pairs = [(self.get(depth + 1), self.get(depth + 1)) for _ in range(self._count())]
            base.clear(value)
            for key, each in pairs:
                (base if code == b"O" else dict).__setitem__(value, key, each)


def shared_names() -> dict[str, Any]:
    """Types and constants that both ends have, by name: they travel as their name."""
    import builtins

    kinds = (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        list,
        tuple,
        set,
        frozenset,
        dict,
        range,
        slice,
    )
    found: dict[str, Any] = {
        kind.__name__: kind for kind in (*kinds, object, map, filter, zip, enumerate, reversed)
    }
    found |= {"NoneType": type(None), "Ellipsis": ..., "NotImplemented": NotImplemented}
    for value in list(vars(builtins).values()):
        if isinstance(value, type) and issubclass(value, BaseException):
            found[value.__name__] = value
    return found


def base_of(kind: type) -> type:
    """The plain type that a class is or derives from; `object` if none."""
    for each in type.__dict__["__mro__"].__get__(kind):
        if code_of(each):
            return each
    return object


def code_of(kind: type) -> bytes:
    """How a type is written; empty for what is no plain type."""
    if kind in _BASIC:
        return _BASIC[kind]
    module = type.__dict__["__module__"].__get__(kind)
    if type(module) is str and module in ("collections", "decimal", "fractions", "datetime"):
        for where, name, code in _LATE:
            loaded = sys.modules.get(where)
            if loaded is not None and getattr(loaded, name, None) is kind:
                return code
    return b""


def type_of(code: bytes) -> Any:
    """The plain type that is written so."""
    if code in _TYPES:
        return _TYPES[code]
    module, name = _MODULES[code]
    return getattr(__import__(module), name)


def _packed(values: list[Any]) -> bytes:
    """Numbers of one exact type as text behind the type's letter; empty for what is not that."""
    kinds = set(map(type, values))
    if kinds == {int} and -_FITTING < min(values) and max(values) < _FITTING:
        return b"i" + " ".join(map(int.__repr__, values)).encode()
    return b"f" + " ".join(map(float.hex, values)).encode() if kinds == {float} else b""


def _may_be_part(value: Any) -> bool:
    return value is None or type(value) in (int, str) or code_of(type(value)) in _TIMES


def _exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Garbage("not what it says")
    return value


def _parts(code: bytes, value: Any) -> tuple[Any, ...]:
    """The arguments that make such a value again."""
    if code == b"q":
        return (value.numerator, value.denominator)
    if code == b"v":
        return (value.days, value.seconds, value.microseconds)
    if code == b"y":
        named = value.__getinitargs__()
        return (*named, None)[:2]
    date = (value.year, value.month, value.day) if code in b"jw" else ()
    clock = (value.hour, value.minute, value.second, value.microsecond) if code in b"hw" else ()
    return (*date, *clock, value.tzinfo, value.fold) if clock else date


def _number(out: bytearray, number: int) -> None:
    out += number.to_bytes(4, "little")


def _bytes(out: bytearray, data: bytes) -> None:
    _number(out, len(data))
    out += data


def places_of(entry: Any, files: Callable[[str], bool], kept: int) -> tuple[list[tuple[str, int, str]], str]:
    """Frames of a traceback that lie in files of interest, outermost first, at most `kept` at either end.

    Also the file of the innermost frame of all.
    """
    first: list[Any] = []
    last: list[Any] = []
    innermost = ""
    while entry is not None:
        innermost = entry.tb_frame.f_code.co_filename
        if files(innermost):
            if len(first) < kept:
                first.append(entry)
            else:
                last.append(entry)
                if len(last) > kept:
                    del last[0]
        entry = entry.tb_next
    # A line number is looked up when it is asked for: only those of the frames that are kept.
    found = ((each.tb_frame.f_code, each.tb_lineno or 0) for each in first + last)
    return [(code.co_filename, line, code.co_name) for code, line in found], innermost


def name_of(kind: type) -> str:
    """The name of a class, whatever its metaclass says of it."""
    name = type.__dict__["__name__"].__get__(kind)
    return str.__getitem__(name, slice(0, LONGEST_NAME))


def text_of(error: BaseException) -> str:
    """The message of an exception, bounded."""
    try:
        text = str(error)
    except BaseException:  # its __str__ is the program's
        return "<exception str() failed>"
    return str.__getitem__(text, slice(0, LONGEST_MESSAGE))
