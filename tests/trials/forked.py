"""`fedcrab` and `forked-python` on the PATH: forks of a process that has imported the whole package.

Each command is a real process with the arguments, directory, environment and streams that the shell gave it;
only the seconds of importing the simulator are spent once. `forked-python PROGRAM` is `python -W error -c
PROGRAM`. Run as a program, this file is the process that forks.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

LONGEST = 1 << 20  # bytes of a request
COMMANDS = ("fedcrab", "forked-python")
ENGINES = ("fedcrab.flower", "fedcrab.nvflare")  # no command imports them
KERNELS = "fedcrab.native."  # compiled libraries, which are not modules
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = dict(command={command!r}, arguments=sys.argv[1:], directory=os.getcwd())
    request["environment"] = dict(os.environ)
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(server.recv(9) or b"70"))
"""


@contextmanager
def forking(place: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """An environment in which these are such commands."""
    address, programs = str(place / "socket"), place / "bin"
    programs.mkdir(parents=True)
    for name in COMMANDS:
        client = programs / name
        client.write_text(CLIENT.format(python=sys.executable, command=name, address=address))
        client.chmod(0o755)
    command = [sys.executable, __file__, address]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield {**environment, "PATH": f"{programs}{os.pathsep}{environment['PATH']}"}
        finally:
            server.kill()


def serve(address: str) -> None:
    """Import everything, then fork for every command that is asked for."""
    import_all()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the exit code: the child sends it
        while True:
            asked, _ = server.accept()
            if os.fork() == 0:
                server.close()
                run(asked)
            asked.close()


def import_all() -> None:
    """Every module of the package, and with them torch, scikit-learn and matplotlib."""
    import fedcrab

    for found in pkgutil.walk_packages(fedcrab.__path__, "fedcrab."):
        if not found.name.startswith((*ENGINES, KERNELS)) and not found.name.endswith("__main__"):
            import_module(found.name)
    for lazy in ("matplotlib.pyplot", "sklearn.cluster", "sklearn.datasets"):
        import_module(lazy)


def run(asked: socket.socket) -> None:
    """The command in this process, and its exit code to the one who asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams, *_ = socket.recv_fds(asked, LONGEST, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    told = json.loads(request)
    os.chdir(told["directory"])
    os.environ.update(told["environment"])
    code = 70  # where it ends in another way than a command may
    try:
        {"fedcrab": run_command, "forked-python": run_program}[told["command"]](told["arguments"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        asked.sendall(str(code).encode())
        os._exit(0)


def run_command(arguments: list[str]) -> None:
    """`fedcrab ARGUMENTS`."""
    from fedcrab.cli import main

    sys.argv = ["fedcrab", *arguments]
    main()


def run_program(arguments: list[str]) -> None:
    """`python -W error -c PROGRAM`."""
    sys.argv = ["-c"]
    sys.modules["__main__"] = main = ModuleType("__main__")
    warnings.resetwarnings()
    warnings.simplefilter("error")
    exec(compile(arguments[0], "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    serve(sys.argv[1])
