"""What happens in the program's own interpreter: run the program, then do what the tests ask of it, one by one.

The tests are not here, and neither is anything that a pass is made of: whatever the program does to this process, it
can only change what is answered (see `examiner`). So this file takes no care against the program, except that an
honest one which is careless with its builtins, modules and output still gets its answers out.

It imports nothing that a bare interpreter has not imported, `resource` apart: the program finds a fresh one.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Iterator
from os import _exit
from sys import exc_info

TYPE_CHECKING = False  # importing it from typing would double the interpreter's start
if TYPE_CHECKING:
    from typing import Any

    from envs.sandbox.peer import (
        FRAMES_KEPT,
        LONGEST_NAME,
        RESERVE,
        SOLUTION,
        SPECIAL,
        TESTS,
        Gone,
        Peer,
        Unsendable,
        base_of,
        code_of,
        name_of,
        places_of,
        text_of,
    )
else:  # the bootstrap runs `peer` and this file in one namespace
    Any = object

CHANNEL = 3
_STREAMS = (sys.stdout, sys.stderr)
# Equal to no data, and to themselves: said to have no `==` of their own.
_NOT_DERIVED = b"dqjhwvy"  # plain types of which a class at the other end cannot be made
METHODS = (type(len), type(Peer.send.__get__(0)), type("".__len__))


def main(program: str, memory: int, guard: dict[str, Any], rules: tuple[Any, ...]) -> None:
    """Run the program under the guard, serve the examiner at the channel, end the process.

    guard: what the file of that name defines; rules: the arguments of its `make_guard`.
    memory: bytes of address space the process may have from here on, 0 for no limit.
    """
    service = Service(_prepare())
    _limit_memory(memory)
    files, processes = bool(rules[1]), rules[3]
    if files or processes:
        guard["hide_unannounced"](files, processes)
    sys.addaudithook(guard["make_guard"](*rules))
    try:
        service.send(b"H")
        if service.receive() == (b"P", []):
            service.answer(b"P", [program])
            service.serve()
    except Gone:  # the examiner has ended, or this is a child of the program's
        pass
    finally:
        _exit(0)


def _prepare() -> dict[str, Any]:
    """Close what was needed to start; the namespace of a module `solution` as the program finds it."""
    import builtins
    from _sitebuiltins import Quitter
    from os import environ
    from sys import argv

    os.dup2(4, 0)
    os.close(4)
    os.set_inheritable(CHANNEL, False)
    # Only this process is asked: a child finds nothing at the channel's number.
    os.register_at_fork(after_in_child=lambda dup2=os.dup2: dup2(0, CHANNEL, False))
    environ.clear()
    argv[:] = [SOLUTION]
    for name in ("exit", "quit"):  # as `site` would have set them
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))
    module = type(sys)("solution")
    sys.modules["solution"] = module
    module.__dict__["__file__"] = SOLUTION
    module.__dict__["__builtins__"] = builtins
    return module.__dict__


def _limit_memory(most: int) -> None:
    import resource

    ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most and ceiling in (resource.RLIM_INFINITY, max(ceiling, most + RESERVE)):
        resource.setrlimit(resource.RLIMIT_AS, (most, most + RESERVE))


class Service(Peer):
    """The program's end of the channel.

    It is asked to run the program (`P`), to look up a name of the program's (`G`), to call something (`C`) or a
    special method of its class (`O`), to give a name of the program's a module (`M`), and to end (`E`). It answers
    with a value (`R`), an exception (`X`), that the program does not compile (`Y`), that there is no such name (`N`),
    or why a value cannot be sent (`U`). Meanwhile it may ask for a call (`c`) or the next value (`n`) of what a test
    handed to it.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__(CHANNEL, first=1)
        self.namespace = namespace
        self.thread = __import__("_thread").get_ident
        self.main_thread = self.thread()

    def serve(self) -> None:
        """Answer until there is nothing more to ask."""
        while True:
            tag, values = self.receive()
            if tag == b"E":
                flush()
                self.send(b"R", None)
                return
            self.answer(tag, values)

    def answer(self, tag: bytes, values: list[Any]) -> None:
        """Do one thing and say what came of it."""
        try:
            if tag == b"C":
                target, arguments, names, named = values
                result = target(*arguments, **dict(zip(names, named)))  # noqa: B905
            elif tag == b"O":
                name, target, arguments = values
                result = getattr(type(target), name)(target, *arguments)
            elif tag == b"G":
                if values[0] not in self.namespace:
                    return self.send(b"N")
                result = self.namespace[values[0]]
            elif tag == b"M":
                self.namespace[values[0]] = values[1]
                result = None
            else:
                try:
                    code = compile(values[0], SOLUTION, "exec", dont_inherit=True)
                except (SyntaxError, ValueError, OverflowError) as error:
                    return self.complain(error)
                values.clear()
                exec(code, self.namespace)
                result = None
            values.clear()
        except BaseException as error:  # whatever a program raises is its outcome
            return self.report(error)
        flush()
        try:
            self.send(b"R", result)
        except Unsendable as error:
            self.send(b"U", f"{error}")
        except MemoryError as error:
            self.report(error)

    def complain(self, error: Exception) -> None:
        """Say that the program does not compile."""
        # ValueError: a null byte (SyntaxError from 3.12 on) or a lone surrogate, which no source file can hold.
        is_syntax = issubclass(type(error), SyntaxError)
        line = SyntaxError.__dict__["lineno"].__get__(error) if is_syntax else None
        places = ((SOLUTION, line, "<module>"),) if type(line) is int and line > 0 else ()
        self.send(b"Y", name_of(type(error)) if is_syntax else "SyntaxError", text_of(error), places)

    def report(self, error: BaseException) -> None:
        """Say what an exception was; the reserve of memory is for this."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        try:
            flush()
            found, _ = places_of(exc_info()[2], (SOLUTION, TESTS).__contains__, FRAMES_KEPT)
            beyond = object.__getattribute__(error, "__dict__").get("_places", ())
            places = (*((file, line, function[:LONGEST_NAME]) for file, line, function in found), *beyond)
            words = (name_of(type(error)), text_of(error), places)
            try:
                self.send(b"X", error, *words)
            except Unsendable:
                self.send(b"X", None, *words)
        except MemoryError:  # not even the reserve is enough
            self.send(b"X", MemoryError(), "MemoryError", "", ())
        finally:
            if soft != hard:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def scoring(self, tag: bytes, *values: Any) -> Any:
        """Have the examiner call, or take the next value of, what a test handed over. StopIteration at its end."""
        if self.thread() != self.main_thread:
            raise RuntimeError("what a test handed over works in the main thread only")
        flush()
        self.send(tag, *values)
        while True:
            tag, found = self.receive()
            if tag == b"R":
                return found[0]
            if tag == b"S":
                raise StopIteration
            if tag == b"X":
                error, places = found
                error._places = places
                raise error.with_traceback(None)  # where it came from is in the places
            self.answer(tag, found)

    # What is no data

    def kind_of(self, value: Any) -> bytes:
        """An exception, a class, data of a class of the program's, or a handle."""
        kinds = mro_of(type(value))
        if type in kinds:
            return b"K"
        code = data_of(type(value))
        if code and code in _NOT_DERIVED:
            raise Unsendable(
                f"an object of the class {name_of(type(value))}, made from {name_of(base_of(type(value)))}"
            )
        if not code and any(definer_of(name, type(value)) for name in ("__await__", "__anext__")):
            raise Unsendable("a coroutine or what else takes an event loop")
        return code or (b"e" if BaseException in kinds else b"o")

    def put_class(self, out: bytearray, value: Any, code: bytes, depth: int) -> None:
        """The class of a handle; that of plain data goes without saying."""
        kind = type(value)
        self.put(out, None if code == b"K" or code_of(kind) else kind, depth + 1)

    def put_content(self, out: bytearray, code: bytes, value: Any, depth: int) -> None:
        """What there is to say of an object."""
        if code == b"e":
            number = self.numbers.pop(id(value))  # one that holds itself is sent without what it holds
            written = self.attempt(arguments_of(value), depth)
            self.numbers[id(value)] = number
            if written is None:
                self.put(out, (), depth)
            else:
                out += written
            cause = self.attempt(BaseException.__dict__["__cause__"].__get__(value), depth + 1)
            out += cause or b"0"
        elif code == b"K":
            kinds = mro_of(value)
            special = {"__call__"} if value in METHODS else special_of(value)
            fields = getattr(value, "_fields", None) if tuple in kinds else None
            if type(fields) is not tuple or not all(type(each) is str for each in fields):
                fields = None
            bases = type.__dict__["__bases__"].__get__(value)
            module = type.__dict__["__module__"].__get__(value) if BaseException in kinds else None
            home = (module, name_of(value)) if type(module) is str else None
            for part in (name_of(value), bases, tuple(sorted(special)), fields, home):
                self.put(out, part, depth + 1)
        elif code != b"o":
            super().put_content(out, code, value, depth)

    def get_object(self, number: int, code: bytes, kind: Any, depth: int) -> Any:
        """What a test handed over: what a module of the library has, a function, an iterator, an exception."""
        made: Any
        name = self.get(depth) if code in b"&pn" else ""
        if code == b"p":

            def made(*arguments: Any, **named: Any) -> Any:
                return self.scoring(b"c", made, arguments, tuple(named), tuple(named.values()))

            made.__name__ = made.__qualname__ = name
        elif code == b"&":
            made = __import__("importlib").import_module(name)
            for part in self.get(depth):
                made = getattr(made, part)
        elif code == b"n":
            made = self._values(number)
        elif code == b"e":
            made = kind(*self.get(depth))
            made.__cause__ = self.get(depth)
        else:
            return super().get_object(number, code, kind, depth)
        self.keep(number, made)
        return made

    def _values(self, number: int) -> Iterator[Any]:
        while True:
            try:
                value = self.scoring(b"n", self.objects[number])
            except StopIteration:
                return
            yield value


def mro_of(kind: type) -> tuple[type, ...]:
    """A class and its bases, whatever its metaclass says of them."""
    return type.__dict__["__mro__"].__get__(kind)


def special_of(kind: type) -> set[str]:
    """The special methods that a class has of its own: not from `object`, nor from the plain type it is made from."""
    found = set()
    for name in SPECIAL:
        definer = definer_of(name, kind)
        if definer is not None and definer is not object and not code_of(definer):
            found.add(name)
    checker = definer_of("__instancecheck__", type(kind))
    if checker is not type and (
        type.__dict__["__module__"].__get__(checker) not in ("abc", "_py_abc")
        or definer_of("__subclasshook__", kind) is not object
        or __import__("_abc")._get_dump(kind)[0]
    ):
        found.add("__instancecheck__")
    return found


def definer_of(name: str, kind: type) -> Any:
    """The class from which a class has an attribute; None if it has none."""
    for each in mro_of(kind):
        if name in type.__dict__["__dict__"].__get__(each):
            return each
    return None


def arguments_of(error: BaseException) -> tuple[Any, ...]:
    """What makes such an exception again; the names of files are not among an OSError's arguments."""
    arguments = BaseException.__dict__["args"].__get__(error)
    if OSError in mro_of(type(error)) and len(arguments) == 2:
        first, second = (OSError.__dict__[name].__get__(error) for name in ("filename", "filename2"))
        return (*arguments, first, None, second) if first is not None else arguments
    return arguments


def data_of(kind: type) -> bytes:
    """How the plain type that a class derives from is written; empty if from none."""
    return code_of(base_of(kind))


def flush() -> None:
    """Write out what was printed."""
    for stream in _STREAMS:
        try:
            stream.flush()
        except Exception:  # closed or replaced by the program: there is nothing to keep
            continue
