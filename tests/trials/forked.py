"""Commands on the PATH that are forks of one process, which has imported what they need.

Each command is a real process with the arguments, directory, environment and open files that the shell gave
it, and lives no longer than the program that the shell started; only the seconds of importing torch, Flower
or FLARE are spent once. Programs are those of the installed packages, `python` (a file, `-m` or `-c`) and
`forked-python PROGRAM`, which is `python -W error -c PROGRAM`. Run as a program, this file is the process
that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import pkgutil
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType, ModuleType

LONGEST, MOST = 1 << 20, 250  # bytes of a request, and descriptors with it
HIGH = 500  # the first number of descriptors that programs have not been given
FEDCRAB = ("fedcrab", "forked-python")
ENGINES = ("fedcrab.flower", "fedcrab.nvflare")  # no command imports them
CLIENT = """#!{python} -IS
import json, os, socket, sys
if {command!r} == "python" and sys.argv[1][:1] == "-" and sys.argv[1] not in ("-c", "-m"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
given = [0, 1, 2]
for number in sorted(map(int, os.listdir("/proc/self/fd"))):
    try:
        given += [number] if number > 2 and os.fstat(number) else []
    except OSError:  # that of the listing
        pass
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = dict(command={command!r}, arguments=sys.argv[1:], directory=os.getcwd(), program=sys.argv[0])
    request.update(environment=dict(os.environ), descriptors=given)
    socket.send_fds(server, [json.dumps(request).encode()], given)
    for number in given[3:]:
        os.close(number)
    sys.exit(int(server.recv(9) or b"70"))
"""


@contextlib.contextmanager
def forking(
    place: Path, environment: dict[str, str], commands: Sequence[str] = FEDCRAB, imports: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """An environment in which these are such commands; ``imports`` are modules, by default all of fedcrab."""
    address, programs = str(place / "socket"), place / "bin"
    programs.mkdir(parents=True)
    for name in commands:
        client = programs / name
        client.write_text(CLIENT.format(python=sys.executable, command=name, address=address))
        client.chmod(0o755)
    command = [sys.executable, __file__, address, ",".join(commands), ",".join(imports)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield {**environment, "PATH": f"{programs}{os.pathsep}{environment['PATH']}"}
        finally:
            server.kill()


def serve(address: str, commands: Sequence[str], imports: Sequence[str]) -> None:
    """Import everything, then fork for every command that is asked for."""
    programs = {name: program(name) for name in commands}
    for name in imports or everything():
        import_module(name)
    children: dict[int, socket.socket] = {}

    def reap(_signal: int, _frame: FrameType | None) -> None:
        """Tell those who asked how their commands ended."""
        for pid in list(children):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # another signal came while this one was handled
                continue
            if ended:
                with children.pop(pid) as asked, contextlib.suppress(OSError):  # it may have ended
                    code = os.waitstatus_to_exitcode(status)
                    asked.sendall(str(code if code >= 0 else 128 - code).encode())

    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            asked, _ = server.accept()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            pid = os.fork()
            if pid == 0:
                for other in (server, *children.values()):
                    other.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
                run(asked, programs)
            children[pid] = asked
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def everything() -> Iterator[str]:
    """Every module of the package, and with them torch, scikit-learn and matplotlib."""
    import fedcrab
    from fedcrab.native import LEVELS

    for found in pkgutil.walk_packages(fedcrab.__path__, "fedcrab."):
        kernels = found.name.rpartition(".")[2] in LEVELS  # libraries, which look like modules
        if not (kernels or found.name.startswith(ENGINES) or found.name.endswith("__main__")):
            yield found.name
    yield from ("matplotlib.pyplot", "sklearn.cluster", "sklearn.datasets")


def run(asked: socket.socket, programs: dict[str, Callable[[], object]]) -> None:
    """The command in this process, with the exit code that it would have."""
    asked = socket.socket(fileno=out_of_the_way(asked.detach()))
    request, streams, *_ = socket.recv_fds(asked, LONGEST, MOST)
    end_with(asked)
    told = json.loads(request)
    streams = [out_of_the_way(stream) for stream in streams]
    for number, stream in zip(told["descriptors"], streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(told["directory"])
    os.environ.update(told["environment"])
    paths = told["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = [told["program"], *told["arguments"]]
    if "python" in programs and told["command"] != "flwr-simulation":  # Ray compares the pids of its workers
        sys.executable = shutil.which("python") or sys.executable
    code = 1
    try:
        code = ended(programs[told["command"]])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(code)


def out_of_the_way(descriptor: int) -> int:
    """The same, with a number that no program has been given."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(descriptor)
    return moved


def end_with(asked: socket.socket) -> None:
    """End at once when the program that asked has ended, however that was."""
    fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asked, 10, signal.SIGKILL)  # F_SETSIG, which Python does not name
    fcntl.fcntl(asked, fcntl.F_SETFL, fcntl.fcntl(asked, fcntl.F_GETFL) | fcntl.FASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if not asked.recv(1):  # it has ended before
            os.kill(os.getpid(), signal.SIGKILL)


def ended(program: Callable[[], object]) -> int:
    """The exit code of a program."""
    try:
        code = program()
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
        return 1
    if isinstance(code, int) or code is None:
        return code or 0
    print(code, file=sys.stderr)
    return 1


def program(name: str) -> Callable[[], object]:
    """What a command calls."""
    if own := {"python": run_python, "forked-python": run_program}.get(name):
        return own
    (found,) = entry_points(group="console_scripts", name=name)
    return found.load()


def run_python() -> None:
    """`python FILE ...`, `python -m MODULE ...` or `python -c PROGRAM ...`."""
    del sys.argv[0]
    here, what = str(Path.cwd()), sys.argv[0]
    if what == "-m":
        del sys.argv[0]
        sys.path.insert(0, here)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        source = sys.argv.pop(1)
        sys.path.insert(0, "")
        execute(source)
    else:
        sys.path.insert(0, str(Path(what).resolve().parent))
        runpy.run_path(what, run_name="__main__")


def run_program() -> None:
    """`python -W error -c PROGRAM`."""
    source = sys.argv.pop(1)
    sys.argv[0] = "-c"
    warnings.resetwarnings()
    warnings.simplefilter("error")
    execute(source)


def execute(source: str) -> None:
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(compile(source, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    _, address, commands, imports = sys.argv
    serve(address, commands.split(","), [name for name in imports.split(",") if name])
