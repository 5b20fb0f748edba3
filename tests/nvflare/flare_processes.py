"""Processes of one trial: known by the trial's own directory in their command lines, all ended with it."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(place: Path) -> dict[str, str]:
    """Nothing is written to a real home. FLARE imports torch wherever it is: not here, it takes seconds."""
    without = place / "without"
    without.mkdir(exist_ok=True)
    (without / "torch.py").write_text("raise ImportError('not needed here')\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"HOME": str(place), "OMP_NUM_THREADS": "1", "PATH": path, "WITHOUT_TORCH": str(without)}
    own["SIMULATOR"] = str(Path(__file__).parent / "simulator")
    return {**os.environ, **own, "PYTHONPATH": str(ROOT / "src")}


def processes(place: Path) -> dict[int, str]:
    """The processes with this directory in their command line, or that run in it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if int(path.name) != os.getpid() and (
                str(place) in line or str(place) in str((path / "cwd").readlink())
            ):
                found[int(path.name)] = line
    return found


def end_all(place: Path, only: str = "") -> None:
    """Kill them, or those whose command line has this text, until none is left."""
    for _ in range(100):
        left = [pid for pid, line in processes(place).items() if only in line]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
