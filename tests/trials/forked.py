"""A `fedcrab` on the PATH that is a fork of a process which has imported everything, as `python -m` would.

Each command is a real process with the arguments, directory, environment and streams that the shell gave it;
only the seconds of importing the simulator are spent once. Run as a program, this file is the process that
forks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 1 << 20  # bytes of a request
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = dict(arguments=sys.argv[1:], directory=os.getcwd(), environment=dict(os.environ))
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(server.recv(9) or b"70"))
"""


@contextmanager
def forking(place: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """An environment in which `fedcrab` is such a command."""
    address, client = str(place / "socket"), place / "bin" / "fedcrab"
    client.parent.mkdir(parents=True)
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    command = [sys.executable, __file__, address]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield {**environment, "PATH": f"{client.parent}{os.pathsep}{environment['PATH']}"}
        finally:
            server.kill()


def serve(address: str) -> None:
    """Fork for every command that is asked for."""

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


def run(asked: socket.socket) -> None:
    """The command in this process, and its exit code to the one who asked."""
    from fedcrab.cli import main

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
    sys.argv = ["fedcrab", *told["arguments"]]
    code = 70  # where it ends in another way than a command may
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        asked.sendall(str(code).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
