r"""Run an untrusted Python program in a process of its own and its asserts in another; return a structured verdict.

    with Sandbox(Limits(wall_s=2), workers=2) as sandbox:
        result = sandbox.run("def double(x):\n    return 2 * x\n", ["assert double(2) == 4"])

How a program is held. Every program gets an interpreter of its own, executed afresh (standard library only, fixed hash
seed, empty environment) and started before its job is there, so that its start is not waited for. The kernel holds it
by the strongest means that a rehearsal at start-up shows to work; each result says which (`Isolation`):

- user, process, mount, network and IPC namespaces: it sees no process but its own, no file but the interpreter and
  the system's libraries (read-only) and an empty folder in memory, no network. All it started ends with it;
- where those are refused, seccomp and Landlock: no sockets, no signals to others, no new processes (threads only), no
  files but the same ones, and its private folder on disk, removed afterwards;
- where the kernel offers neither: resource limits, its process group, and a guard inside the interpreter, best effort
  (`guard` says which ways round it are known). It also has what one filter leaves open where the other is missing.

seccomp also backs up the namespaces; without it there is memory that no limit counts (System V segments, files
in memory). Address space is limited above that of a fresh interpreter, for each process it starts; processes and
threads are counted only in namespaces (elsewhere it may start threads as memory allows).

What a verdict is worth. Whatever reaches a program's own process is the program's: its frames, its descriptors, what
its children inherit. So nothing that a pass is made of is ever there: no test, no expected value, no nonce. The tests
run in a second process, the examiner (see `examiner`), which asks the program to call what the tests call and gets
the results by value, as plain data of exact built-in types (see `peer`). `==`, `all` and `assert` are evaluated by
the examiner on those values; it alone has the pipe to the supervisor, made after the program's process was, and it
cannot be traced or read by others. Answers are decoded strictly, bounded in size and depth; nothing of them is
evaluated, imported or called. So the most that a program can do, by whatever trick, is to choose the values of its
calls, which is what a program does. A nonce handed over "only after the tests passed" was the other choice; it leaves
the tests, their expected values and the judgement in the program's hands.

What follows from that: an object of the program's own class is never asked to judge itself (`==`, `<`, `in`,
arithmetic with a test's data, methods of a class that no test names); such a test has the outcome `unverifiable`, and
so has one whose values cannot be sent. A name of Python's own in a test means Python's, unless `names` says otherwise.
Names that the tests bind are not seen by the program.

What remains the program's word: what a method answers of a class that the tests name (`assert tree.is_balanced()`),
whether it calls a function that a test hands to it, which exception it raises, and what a name means that a test uses
without binding it (import in `setup` what the tests need), what a class is called. A test that asks little is passed
by little: an iterator that ends at once satisfies `all(…)`.

Where the kernel holds no files (`Isolation.files` is `none`), the guard alone keeps the program from what its user may
do: the client's memory and this project's files, and so the verdict, are within reach of one that gets round it. Byte
code crafted to write to the interpreter's memory does, and from Python 3.13 on so does a change of the guard's frames.
Do not run programs there that want to attack you.

What a test does to a module (`random.seed`, `sys.setrecursionlimit`, a patched `input`, `redirect_stdout`) it does in
its own process: the program does not see it. `isinstance` with a class of the library's that is no plain data
(`types.GeneratorType`, `re.Match`) is false for what the program sends.

What this is not: a defence against holes in the kernel, against measuring time or load, or against a program that
fills the processor and its limits as long as they last; outside namespaces each file is limited, not their number
(those that cannot be removed in half a second are removed after the result, between jobs).
Other systems than Linux have the guard and the limits only.
"""

from envs.sandbox.client import Sandbox
from envs.sandbox.limits import Limits
from envs.sandbox.results import OUTCOMES, ExecResult, Frame, Isolation

__all__ = ["OUTCOMES", "ExecResult", "Frame", "Isolation", "Limits", "Sandbox"]
