"""The examiner: the process in which the tests run, and in which alone a pass is decided.

It is a fork of the referee, held like the program but apart from it: no memory, no descriptor but one end of the
channel, and where the kernel allows no user id in common. The tests run here, on what the program answers:

- a name that a test uses is the test's own, else Python's, else the program's: the last is looked up in the program's
  process, and what is called there is called there;
- data comes by value, as exact built-in types, so `==`, `all` and `assert` are decided here, on genuine values;
- every other object stays there (a handle here). It can be called, iterated, indexed and converted; asked for
  attributes if the tests name its class. It is never asked whether it is equal to, less than or contains something,
  its hash, nor for arithmetic with a test's data: its answer would be the program's verdict on itself. Objects without
  an `==` of their own are equal to themselves only, as ever; else the outcome is `unverifiable`;
- so it is where the program would skip a test's assertions: by a StopIteration out of a call, by a context manager
  that swallows an error, by a name of its own that stands for Exception, by going on when an assertion failed in what
  a test handed over.

The program has nothing to answer with but values of calls, so a program that wants to pass has to give right ones.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import select
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from envs.sandbox.peer import (
    CONTAINERS,
    FRAMES_KEPT,
    SETUP,
    SOLUTION,
    SPECIAL,
    TESTS,
    Garbage,
    Gone,
    Peer,
    Unsendable,
    base_of,
    code_of,
    name_of,
    places_of,
    text_of,
    type_of,
)
from envs.sandbox.verdict import lines_of

Place = tuple[str, int, str]
Detail = tuple[str, str, str, list[Place]]
Units = list[tuple[int, str, Any]]

_ENOMEM = 12
_LONGEST_TEXT = 4000
_NOT_WHOLE = "the program's answer did not arrive whole"
# Special methods by which an object would judge itself, and those that need no other value.
_JUDGING = frozenset("__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ __hash__".split())
_ALONE = frozenset(
    "__bool__ __len__ __iter__ __next__ __reversed__ __getitem__ __setitem__ __delitem__ __enter__ __exit__ __str__ "
    "__repr__ __format__ __int__ __float__ __complex__ __index__ __bytes__ __round__ __trunc__ __floor__ __ceil__ "
    "__abs__ __neg__ __pos__ __invert__".split()
)
_OF_GENERATORS = frozenset(("send", "throw", "close"))
# Modules whose functions do nothing but compute. Where a test uses one that only the program imports, it gets ours.
_PURE = frozenset(
    "bisect cmath collections copy datetime decimal fractions functools heapq itertools json math operator random re "
    "statistics string sys".split()
)
# Modules whose exceptions a test may catch by their name there, and know the program's by it.
_RAISING = _PURE | frozenset(
    "binascii configparser csv dataclasses enum graphlib ipaddress pickle queue shlex struct zlib zoneinfo".split()
)
# How many values come with each kind of answer.
_SIZES = {b"H": 0, b"R": 1, b"X": 4, b"Y": 3, b"N": 0, b"U": 1, b"c": 4, b"n": 1, b"S": 0}
_FILES = (SOLUTION, TESTS)


class Unverifiable(BaseException):
    """A test that would have to take the program's word for its verdict. No test can catch it and go on to pass."""


class NoSuchName(Exception):
    """The program has no such name."""


def examine(
    job: dict[str, Any], channel: int, handle: int | None, tell: Callable[[list[Any]], None], reserve: Any
) -> None:
    """Run the job's setup and tests on the program at the other end of the channel; tell what comes of it.

    handle: a descriptor that becomes readable when the program's process ends. reserve: called before a failure is
    reported, to make memory free. What is told: ["ready"], ["test", index], and one of ["passed"], ["detail",
    outcome, exception, message, places], and ["gone"] when the program's process no longer answers.
    """
    examiner = Examiner(channel, handle, job["names"])
    examiner.expects_stop = any("StopIteration" in text for text in (*job["setup"], *job["tests"]))
    try:
        units = _compiled(job)
        examiner.hear(b"H")
        tell(["ready"])
        detail = examiner.run_program() or examiner.run_tests(units, tell, reserve)
    except (Gone, Garbage):
        tell(["gone"])
    except Unverifiable:
        tell(["detail", "unverifiable", "", examiner.why_not, []])
    except MemoryError:
        reserve()
        tell(["detail", "memory_limit", "MemoryError", "", []])
    else:
        tell(["detail", *detail] if detail else ["passed"])


def _compiled(job: dict[str, Any]) -> Units:
    """(index of the test or -1, file, code or the exception that compiling raised), in order.

    Tests are the lines of one file, `tests.py`, one after another. A test that does not compile raises when its turn
    comes.
    """
    units = [(-1, SETUP, _compile(source, SETUP)) for source in job["setup"]]
    above = 0
    for index, source in enumerate(job["tests"]):
        units.append((index, TESTS, _compile("\n" * above + source, TESTS)))
        above += len(lines_of(source))
    return units


def _compile(source: str, file: str) -> Any:
    try:
        return compile(source, file, "exec", dont_inherit=True)
    except Exception as error:
        return error


class Examiner(Peer):
    """The examiner's end of the channel, see `inside.Service` for what is said there."""

    def __init__(self, channel: int, handle: int | None, names: list[str]) -> None:
        super().__init__(channel, first=2)
        self.handle = handle
        self.names = frozenset(names)
        self.named: set[int] = set()  # numbers of classes and objects that a test came by in words of its own
        self.lent: set[int] = set()  # numbers of what may be called or iterated from the other end
        self.reports: dict[int, tuple[BaseException, str, list[Place]]] = {}
        self.why_not = ""  # why no verdict can be reached any more
        self.lost = False  # the program's process no longer answers
        self.failed = False  # an assertion of a test's has failed in what the program called
        self.stopped = False  # the program raised StopIteration where nothing was iterated
        self.expects_stop = False  # the tests speak of StopIteration
        self.describing = 0  # what is read says what class something is of
        self.catching = ""  # a class among what was read that would catch a test's assertions
        self.space = Names(self)
        self._unused = _references({0: object()})[0]
        sys.modules["solution"] = Solution(self.space)

    # The course of events

    def run_program(self) -> Detail | None:
        """Have the program run; what went wrong, or None."""
        self.send(b"P")
        tag, values = self.answer()
        if tag == b"R":
            return None
        if tag == b"Y":
            name, message, places = values
            return "syntax_error", _text(name), _text(message), _places(places)
        error = self.exception(tag, values)
        try:
            raise error
        except BaseException:  # whatever a program raises is its outcome
            return self.account(error, test=False)

    def run_tests(self, units: Units, tell: Callable[[list[Any]], None], reserve: Any) -> Detail | None:
        """Run setup and tests up to the first that fails; what went wrong, or None for a pass."""
        try:
            failure = self._run_until_failure(units, tell, reserve)
            if failure is None:
                self.inform(b"E")  # the program's output is out, and it is still there
                self._check_failed()
        except Unverifiable:
            self._still_there()
            failure = None
        finally:
            _flush()
        if self.why_not and not (failure and failure[0] == "memory_limit"):
            return "unverifiable", "", self.why_not, []
        return failure

    def _run_until_failure(
        self, units: Units, tell: Callable[[list[Any]], None], reserve: Any
    ) -> Detail | None:
        setting_up = True
        for index, file, code in units:
            if index >= 0:
                if setting_up:
                    self._lend_modules()
                setting_up = False
                tell(["test", index])
            try:
                if isinstance(code, Exception):
                    raise code
                exec(code, self.space)
            except Unverifiable:
                raise
            except BaseException as error:
                self._still_there()
                reserve()
                return self.account(error, test=file == TESTS)
            self._still_there()
            if self.stopped and not self.expects_stop:
                raise self.unverifiable(
                    "the program raised StopIteration, which a test takes for the end of what it goes through"
                )
            if self.why_not:
                raise Unverifiable
            self._check_failed()
        return None

    def _check_failed(self) -> None:
        """A program may have been meant to catch it, or not: that is for no one here to say."""
        if self.failed:
            raise self.unverifiable(
                "the program went on after an assertion of a test's had failed in what the test handed over"
            )

    def _still_there(self) -> None:
        """Raise Gone if the program's process stopped answering, whatever a test caught."""
        if self.lost:
            raise Gone

    def _lend_modules(self) -> None:
        """What the setup imported the program has too, as if both shared a namespace."""
        for name, value in list(dict.items(self.space)):
            if isinstance(value, types.ModuleType) and _address(value) and name != "__builtins__":
                self.inform(b"M", name, value)

    def account(self, error: BaseException, test: bool) -> Detail:
        """(outcome, class, message, places) of the exception being handled."""
        places, innermost = self._all_places(error)
        message = self.reports[id(error)][1] if id(error) in self.reports else _text(text_of(error))
        if test and not places and isinstance(error, SyntaxError) and error.lineno:
            places = [(TESTS, error.lineno, "<module>")]
        return _outcome(error, test and innermost == TESTS), _text(name_of(type(error))), message, places

    def _all_places(self, error: BaseException) -> tuple[list[Place], str]:
        """Frames of the exception being handled, here and there, outermost first; the file of the innermost here."""
        places, innermost = places_of(sys.exc_info()[2], _FILES.__contains__, FRAMES_KEPT)
        if id(error) in self.reports:
            places += self.reports[id(error)][2]
        if len(places) > 2 * FRAMES_KEPT:
            places = places[:FRAMES_KEPT] + places[-FRAMES_KEPT:]
        return places, innermost

    # Speaking with the program

    def request(self, tag: bytes, *values: Any) -> Any:
        """Ask and return what the program answers; what it raises is raised here."""
        if self.why_not:
            raise Unverifiable
        self._prune()
        _flush()
        self._say(tag, *values)
        said, found = self.answer()
        if said == b"R":
            return found[0]
        if said == b"N" and tag == b"G":
            raise NoSuchName
        error = self.exception(said, found)
        if isinstance(error, StopIteration) and (tag, *values[:1]) != (b"O", "__next__"):
            self.stopped = True  # `all(map(f, …))` would end here, and pass
        raise error

    def inform(self, tag: bytes, *values: Any) -> None:
        """Tell what the program's end has to know; any answer but that it knows is none."""
        if self.why_not:
            raise Unverifiable
        self._say(tag, *values)
        if self.answer()[0] != b"R":
            self.lost = True
            raise Gone

    def call(self, target: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call something there."""
        return self.request(b"C", target, arguments, tuple(named), tuple(named.values()))

    def answer(self) -> tuple[bytes, list[Any]]:
        """The next answer; what the program asks for meanwhile is done."""
        while True:
            tag, values = self.hear(b"R", b"X", b"Y", b"N", b"U", b"c", b"n")
            if tag == b"U":
                reason = values[0] if type(values[0]) is str else ""
                raise self.unverifiable(f"a value of the program's cannot be sent: {reason[:200]}")
            if self.catching:
                raise self.unverifiable(
                    f"the program hands a test the class {self.catching}, which catches the test's own assertions"
                )
            if tag not in (b"c", b"n"):
                return tag, values
            self._serve(tag, values)

    def hear(self, *tags: bytes) -> tuple[bytes, list[Any]]:
        """One message of these kinds; after anything else nothing more is asked."""
        before, self.why_not = self.why_not, self.why_not or _NOT_WHOLE
        try:
            tag, values = self.receive()
            if tag not in tags or len(values) != _SIZES[tag]:
                raise Garbage(f"an answer {tag!r}")
        except (Gone, Garbage):
            self.lost = True
            raise
        self.why_not = before
        return tag, values

    def read(self, size: int) -> bytes:
        """As any peer; Gone too when the program has ended and left nothing, whoever else holds its end."""
        if self.handle is None:
            return super().read(size)
        parts = []
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self.handle, select.POLLIN)
        while size:
            if self.channel not in {descriptor for descriptor, _ in poll.poll()}:
                raise Gone
            parts.append(super().read_some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def unverifiable(self, why: str) -> Unverifiable:
        """To be raised; from now on there is no pass, even if a test catches it."""
        if self.why_not in ("", _NOT_WHOLE):
            self.why_not = _text(why)
        return Unverifiable(why)

    def _say(self, tag: bytes, *values: Any) -> None:
        try:
            self.send(tag, *values)
        except Unsendable as error:
            raise self.unverifiable(f"a test hands the program what cannot be sent to it: {error}") from None
        except Gone:
            self.lost = True
            raise

    def _serve(self, tag: bytes, values: list[Any]) -> None:
        """Call, or take the next value of, what a test handed over; nothing else can be reached from there."""
        target = values[0]
        if self.numbers.get(id(target)) not in self.lent:
            self.lost = True
            raise Garbage("something that was not handed over")
        try:
            if tag == b"n":
                result = next(target)
            else:
                _, arguments, names, named = values
                if not all(type(each) is tuple for each in (arguments, names, named)):
                    self.lost = True
                    raise Garbage("no arguments")
                result = target(*arguments, **dict(zip(names, named, strict=True)))
        except (Gone, Garbage, Unverifiable):
            raise
        except BaseException as error:
            if tag == b"n" and isinstance(error, StopIteration):
                return self._say(b"S")
            if isinstance(error, AssertionError) and id(error) not in self.reports:
                self.failed = True
            return self._say(b"X", error, tuple(self._all_places(error)[0]))
        self._say(b"R", result)

    def _prune(self) -> None:
        """Let both ends forget the objects that only this table still holds."""
        while True:
            references = _references(self.objects)
            unused = [
                number
                for number, count in references.items()
                if count <= self._unused
                and number not in self.lent  # the program may have kept it, to call it later
                and not isinstance(self.objects[number], type)
                and not self.has_changed(number)  # it is to be told first
            ]
            if not unused:
                return
            for number in unused:
                self.forget(number)
                self.dropped.append(number)

    def forget(self, number: int) -> None:
        """As any peer; a number is not used again."""
        super().forget(number)
        self.named.discard(number)
        self.lent.discard(number)

    # What a test hands over

    def kind_of(self, value: Any) -> bytes:
        """What the library has at an address; an exception; what may be called or iterated from there."""
        if isinstance(value, BaseException):
            return b"e"
        if _address(value):
            return b"&"
        if callable(value):
            return b"p"
        if hasattr(type(value), "__next__") and not _has_more_to_it(type(value)):
            return b"n"
        raise Unsendable(f"an object of the class {name_of(type(value))}")

    def put_class(self, out: bytearray, value: Any, code: bytes, depth: int) -> None:
        """Of an exception its nearest built-in class; a test's other classes stay here."""
        kind: Any = None
        if code == b"e":
            kind = next(each for each in type(value).__mro__ if id(each) in self.shared_ids)
        self.put(out, kind, depth)

    def put_content(self, out: bytearray, code: bytes, value: Any, depth: int) -> None:
        """What there is to say of an object."""
        if code == b"&":
            for part in _address(value):
                self.put(out, part, depth)
        elif code in b"pn":
            self.lent.add(self.numbers[id(value)])
            self.put(out, str(getattr(value, "__name__", "value"))[:100], depth)
        elif code == b"e":
            arguments = self.attempt(value.args, depth)
            if arguments is None:
                self.put(out, (text_of(value),), depth)
            else:
                out += arguments
            self.put(out, value.__cause__, depth + 1)
        else:
            super().put_content(out, code, value, depth)

    # What the program answers with

    def make(self, kind: type, code: bytes) -> Any:
        """An empty container, of the program's class if that derives from the container's here too."""
        base = type_of(code)
        return base.__new__(kind if issubclass(kind, base) else base)

    def get_kind(self, depth: int) -> Any:
        """What says of which class something is may be any class."""
        self.describing += 1
        try:
            return super().get_kind(depth)
        finally:
            self.describing -= 1

    def get_shared(self, name: Any) -> Any:
        """As any peer; a class that catches an AssertionError is for the tests to name, not for the program."""
        value = super().get_shared(name)
        if not self.describing and isinstance(value, type) and issubclass(AssertionError, value):
            self.catching = self.catching or ("" if value is object else value.__name__)
        return value

    def get_object(self, number: int, code: bytes, kind: Any, depth: int) -> Any:
        """A class, an exception, a number or text of a class of the program's, or a handle."""
        if code == b"K":
            made: Any = self._class(*(self.get_kind(depth + 1) for _ in range(5)))
        elif not isinstance(kind, type):
            raise Garbage("an object of no class")
        elif code == b"e":
            made = self._exception(kind, self.get(depth))
            cause = self.get(depth)
            made.__cause__ = cause if isinstance(cause, BaseException) else None
        elif code == b"o":
            if not isinstance(kind, Class) or base_of(kind) is not object or issubclass(kind, BaseException):
                raise Garbage("an object of a class of data")
            made = object.__new__(kind)
        else:
            made = self.get_plain(code, depth)
            base: Any = type(made)
            if base not in _IMMUTABLE or not (isinstance(kind, Class) and issubclass(kind, base)):
                if number not in self.objects:  # nothing is known of its class here: it is what it holds
                    self.objects[number] = made
                return made
            made = base.__new__(kind, made)
        if number in self.objects or id(made) in self.numbers:
            raise Garbage("a number that is taken")
        self.keep(number, made)
        return made

    def _class(self, name: Any, bases: Any, special: Any, fields: Any, home: Any) -> type:
        if type(name) is not str or not all(type(each) is tuple for each in (bases, special)):
            raise Garbage("a class without a name")
        if not all(isinstance(each, type) for each in bases) or not all(
            type(each) is str for each in special
        ):
            raise Garbage("a class of no classes")
        kept = tuple(each for each in bases if isinstance(each, Class) or self._is_base(each)) or (object,)
        if (known := _exception_class(home)) is not None:
            kept = (known,)
        data = any(base_of(each) is not object for each in kept)
        described: dict[str, Any] = {
            "__module__": "solution",
            "__slots__": (),
            "__examiner__": self,
            "__checks__": "__instancecheck__" in special,
            "__doc__": _Asked("__doc__"),
            "__annotations__": _Asked("__annotations__"),
            "__getattr__": _get_attribute,
        }
        if fields is not None and any(issubclass(each, tuple) for each in kept):
            described |= _fields(fields)
        # Data has the methods of its plain type but for those that its class has of its own, which are named here.
        described |= {each: _special(each) for each in SPECIAL.intersection(special)}
        if "__eq__" in described:
            described["__hash__"] = _special("__hash__")
        elif not data:
            described["__hash__"] = object.__hash__
        if not data and not any(issubclass(each, BaseException) for each in kept):
            described |= {"__setattr__": _set_attribute, "__delattr__": _delete_attribute}
        name = name.replace("\0", "").encode("utf-8", "replace").decode()
        try:
            return Class(name, kept, described)
        except TypeError:  # bases that do not go together here
            return Class(name, (object,), described)

    def _is_base(self, kind: type) -> bool:
        """Whether a class of the program's may derive from it here."""
        code = code_of(kind)
        return (
            id(kind) in self.shared_ids
            and kind in _IMMUTABLE
            or code != b""
            and code in CONTAINERS
            or (issubclass(kind, BaseException))
        )

    def _exception(self, kind: type, arguments: Any) -> BaseException:
        """An exception, not raised yet, of a built-in class or one of the program's."""
        if not issubclass(kind, BaseException) or type(arguments) is not tuple:
            raise Garbage("an exception of no exception's class")
        base: Any = next(each for each in kind.__mro__ if not isinstance(each, Class))
        made: Any = None
        if not _in_library(
            base
        ):  # whose attributes are what its constructor made of other arguments: asked for
            try:
                made = base.__new__(kind, *arguments)
                base.__init__(made, *arguments)
            except Exception:  # arguments that its class does not take
                made = None
        if type(made) is not kind:  # or with which it makes one of another
            made = base.__new__(kind)
            made.args = arguments
        return made

    def exception(self, tag: bytes, values: list[Any]) -> BaseException:
        """The exception that the program answered with; what was said of it is kept for the report."""
        if tag != b"X":
            raise Garbage(f"an answer {tag!r}")
        error, name, message, places = values
        if not isinstance(error, BaseException):
            error = type(_text(name).replace("\0", "") or "Exception", (Exception,), {})()
        self.reports[id(error)] = error, _text(message), _places(places)
        return error.with_traceback(None)

    def may_ask(self, value: Any) -> bool:
        """Whether the tests came by the object, or its class, in words of their own."""
        if isinstance(value, BaseException) and _in_library(type(value)):
            return True
        known = (self.numbers.get(id(each)) for each in (value, *type(value).__mro__))
        return any(number in self.named for number in known)

    def name(self, value: Any) -> Any:
        """The value, which a test came by in words of its own."""
        number = self.numbers.get(id(value))
        if number is not None:
            self.named.add(number)
        return value


_IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset)


class Names(dict[str, Any]):
    """The namespace of the tests: their own names, then Python's, then the program's (those of `names` first)."""

    def __init__(self, examiner: Examiner) -> None:
        super().__init__(__name__="solution", __file__=SOLUTION, __builtins__=Builtins(self))
        self.examiner = examiner

    def __missing__(self, name: str) -> Any:
        examiner = self.examiner
        if name not in examiner.names and hasattr(builtins, name):
            raise KeyError(name)  # Python looks there next
        try:
            value = examiner.request(b"G", name)
        except NoSuchName:
            raise KeyError(name) from None
        if name in _PURE and name not in examiner.names:
            return importlib.import_module(name)
        return examiner.name(value)


class Builtins(dict[str, Any]):
    """Python's names. The body of a class looks for a name in the plain content of `Names`, and then here."""

    def __init__(self, names: Names) -> None:
        super().__init__(vars(builtins))
        self.names = names

    def __missing__(self, name: str) -> Any:
        return self.names[name]


class Solution(types.ModuleType):
    """The module `solution`, for tests that import it."""

    def __init__(self, names: Names) -> None:
        super().__init__("solution")
        self.__dict__["__names__"] = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["__names__"][name]
        except KeyError:
            raise AttributeError(f"module 'solution' has no attribute '{name}'") from None


class Class(type):
    """A class of the program's, as the tests see it. Its instances are handles, or data with a handle."""

    def __new__(cls, name: str, bases: tuple[type, ...], described: dict[str, Any]) -> Class:
        """Only the examiner makes them: the program would not know what a test derives from its classes."""
        if "__examiner__" not in described:
            own = next(each for each in bases if isinstance(each, Class))
            raise _examiner(own).unverifiable(
                f"a test derives its class {name} from the program's class {name_of(own)}"
            )
        return super().__new__(cls, name, bases, described)

    def __instancecheck__(cls, value: Any) -> bool:
        """As Python itself says, unless the program's class has a say of its own."""
        return _checked(cls, super().__instancecheck__(value))

    def __subclasscheck__(cls, value: Any) -> bool:
        """As Python itself says, unless the program's class has a say of its own."""
        return _checked(cls, super().__subclasscheck__(value))

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        """Make an instance, there."""
        return _examiner(cls).call(cls, arguments, named)

    def __getattr__(cls, name: str) -> Any:
        return _get_attribute(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        _set_attribute(cls, name, value)

    def __iter__(cls) -> Iterator[Any]:
        return _examiner(cls).request(b"O", "__iter__", cls, ())

    def __len__(cls) -> int:
        return _examiner(cls).request(b"O", "__len__", cls, ())

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return _examiner(cls).call(operator.getitem, (cls, key), {})


def _examiner(value: Any) -> Examiner:
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    found = next(kind.__dict__["__examiner__"] for kind in kinds if "__examiner__" in kind.__dict__)
    return found


def _checked(kind: Class, plainly: bool) -> bool:
    if kind.__dict__["__checks__"]:
        raise _examiner(kind).unverifiable(
            f"a test asks the program's class {name_of(kind)} whether something is an instance of it"
        )
    return plainly


class _Asked:
    """An attribute that Python gives every class here, and that is the program's to say."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, value: Any, kind: type) -> Any:
        return _get_attribute(kind if value is None else value, self.name)


def _get_attribute(self: Any, name: str) -> Any:
    examiner = _examiner(self)
    if name == "__signature__":  # its absence would be taken for that of any call here
        raise examiner.unverifiable(
            "a test asks for the signature of what is called in the program's process"
        )
    if not examiner.may_ask(self):
        own = name_of(type(self))
        of_iterators = hasattr(type(self), "__next__") and name == "keys"  # dict() looks for it
        if (name.startswith("__") and name.endswith("__") and name != "__dict__") or of_iterators:
            raise AttributeError(f"'{own}' object has no attribute '{name}'")
        if not (own == "generator" and name in _OF_GENERATORS):
            raise examiner.unverifiable(
                f"a test asks an object of the class {own}, which no test names, for {name}"
            )
    return examiner.name(examiner.call(getattr, (self, name), {}))


def _set_attribute(self: Any, name: str, value: Any) -> None:
    _examiner(self).call(setattr, (self, name, value), {})


def _delete_attribute(self: Any, name: str) -> None:
    _examiner(self).call(delattr, (self, name), {})


def _special(name: str) -> Callable[..., Any]:
    """The special method of a handle."""
    if name == "__call__":
        return lambda self, *arguments, **named: _examiner(self).call(self, arguments, named)

    def method(self: Any, *arguments: Any) -> Any:
        examiner = _examiner(self)
        among_own = all(isinstance(type(each), Class) for each in arguments) and examiner.may_ask(self)
        if name in _JUDGING or not (among_own or name in _ALONE):
            own = name_of(type(self))
            raise examiner.unverifiable(f"a test asks an object of the program's class {own} for its {name}")
        if name != "__exit__":
            return examiner.request(b"O", name, self, arguments)
        kind, error, _ = arguments
        if examiner.request(b"O", name, self, (kind, error, None)) and error is not None:
            raise examiner.unverifiable(
                f"the program's context manager {name_of(type(self))} swallows what a test stopped at"
            )
        return False

    return method


def _fields(names: Any) -> dict[str, Any]:
    """What a named tuple has beyond a tuple."""
    if type(names) is not tuple or not all(type(each) is str and each.isidentifier() for each in names):
        raise Garbage("fields without names")

    def show(self: Any) -> str:
        pairs = ", ".join(f"{name}={value!r}" for name, value in zip(names, self, strict=False))
        return f"{name_of(type(self))}({pairs})"

    found = {name: property(operator.itemgetter(at)) for at, name in enumerate(names) if name[0] != "_"}
    return {**found, "_fields": names, "__repr__": show}


def _has_more_to_it(kind: type) -> bool:
    """Whether an iterator's class has methods that would be missed at the other end: a file is no mere iterator."""
    plain = kind.__module__ in ("builtins", "itertools")
    return not plain and any(name[0] != "_" for name in dir(kind))


def _exception_class(home: Any) -> type | None:
    """The exception of the library's at (module, name), of modules that tests have imported; else None."""
    if type(home) is not tuple or [type(each) for each in home] != [str, str]:
        return None
    module, name = home
    found = getattr(sys.modules.get(module), name, None) if module.split(".")[0] in _RAISING else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _in_library(kind: type) -> bool:
    """Whether it is made from an exception that the library has beside the built-in ones."""
    return any(not isinstance(each, Class) and each.__module__ != "builtins" for each in kind.__mro__)


def _references(objects: dict[int, Any]) -> dict[int, int]:
    """How often each object is referred to, the same number too much for all."""
    return {number: sys.getrefcount(value) for number, value in objects.items()}


def _address(value: Any) -> tuple[str, tuple[str, ...]] | tuple[()]:
    """(module, names) under which the standard library has a module, function or class; () for everything else."""
    if isinstance(value, types.ModuleType):
        module, path = value.__name__, ""
    else:
        module, path = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    if (
        type(module) is not str
        or type(path) is not str
        or module.split(".")[0] not in sys.stdlib_module_names
    ):
        return ()
    found: Any = sys.modules.get(module)
    names = tuple(path.split(".")) if path else ()
    for name in names:
        found = getattr(found, name, None)
    return (module, names) if found is value else ()


def _text(value: Any) -> str:
    """Text of the program's, bounded, that can be written."""
    if type(value) is not str:
        return ""
    return value[:_LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def _places(value: Any) -> list[Place]:
    """Frames that the program's end named, if they are such."""
    if type(value) is not tuple or len(value) > 4 * FRAMES_KEPT:
        return []
    for each in value:
        if (
            type(each) is not tuple
            or [type(part) for part in each] != [str, int, str]
            or each[0] not in _FILES
        ):
            return []
    return [(file, line, _text(function)) for file, line, function in value if 0 <= line < 1 << 31]


def _outcome(error: BaseException, raised_by_a_test: bool) -> str:
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return "exited"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == _ENOMEM):
        return "memory_limit"
    return "test_failure" if raised_by_a_test and isinstance(error, AssertionError) else "runtime_error"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed or replaced by a test
            continue
