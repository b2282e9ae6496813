r"""A sandbox that means it: run an untrusted Python program and its asserts, return a structured verdict.

    with Sandbox(Limits(wall_s=2), workers=2) as sandbox:
        result = sandbox.run("def double(x):\n    return 2 * x\n", ["assert double(2) == 4"])

How a program is held. Every program gets an interpreter of its own, executed afresh (standard library only, fixed hash
seed, empty environment) and started before its job is there, so that its start is not waited for. The kernel holds it
by the strongest means that a rehearsal at start-up shows to work; each result says which (`Isolation`):

- user, process, mount, network and IPC namespaces: it sees no process but its own, no file but the interpreter and
  the system's libraries (read-only) and an empty folder in memory, no network. All it started ends with it;
- where those are refused, seccomp and Landlock: no sockets, no signals to others, no new processes (threads only), no
  files but the same ones, and its private folder on disk, removed afterwards;
- where the kernel offers neither: resource limits, its process group, and a guard inside the interpreter, best effort.

seccomp also stands behind the namespaces. Address space is limited above that of a fresh interpreter, for each process
it starts; processes and threads are counted only in namespaces (elsewhere it may start threads as memory allows).

What a verdict is worth. "passed" takes a nonce that lies where no Python code can look (see `inside`). What remains:
a program may make its own asserts true (an `==` that always is, a test that reads its caller's frames for the tests);
byte code crafted to read the interpreter's memory could find the nonce; so could a hole in an extension module of the
standard library, or a Python with ctypes built in (`_ctypes` in `sys.builtin_module_names`; usual ones have not).
What a failing program says of its failure is its own word.

What this is not: a defence against holes in the kernel, against measuring time or load, or against a program that
fills the processor and its limits as long as they last; outside namespaces each file is limited, not their number.
Other systems than Linux have the guard and the limits only.
"""

from envs.sandbox.client import Sandbox
from envs.sandbox.limits import Limits
from envs.sandbox.results import OUTCOMES, ExecResult, Frame, Isolation

__all__ = ["OUTCOMES", "ExecResult", "Frame", "Isolation", "Limits", "Sandbox"]
