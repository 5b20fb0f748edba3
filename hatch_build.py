"""Compiles the kernels in ``src/fedcrab/native`` when the package is built or installed.

    python hatch_build.py     # compile them again in this checkout

There is one library per level of the processor, and the best that runs is chosen when it is loaded. Without a
C compiler the package is built without them and works the same, only slower.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path(__file__).parent / "src" / "fedcrab" / "native"
LEVELS = {"avx512": ["-march=x86-64-v4"], "avx2": ["-march=x86-64-v3"], "portable": []}
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=default"]
# These may use fused multiply-add. What the others compute is the same to the last bit on every processor.
FUSED = ("mlp.c", "cnn.c", "gram.c")


class CompileKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it packs a wheel."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform in the wheel's tag."""
        try:
            compile_kernels()
        except (OSError, subprocess.CalledProcessError) as problem:
            self.app.display_warning(f"fedcrab is built without compiled kernels: {problem}")
            return
        build_data["artifacts"].append("src/fedcrab/native/*.so")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_kernels() -> None:
    """Make the libraries that are missing, or were made from other sources."""
    sources, headers = sorted(NATIVE.glob("*.c")), sorted(NATIVE.glob("*.h"))
    found = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, *headers])).hexdigest()
    levels = LEVELS if platform.machine().lower() in ("x86_64", "amd64") else {"portable": []}
    old = [name for name in levels if not _current(NATIVE / f"{name}.so", found)]
    with (
        ThreadPoolExecutor(os.cpu_count()) as beside,
        tempfile.TemporaryDirectory(prefix=".build", dir=NATIVE) as folder,
    ):
        objects = {
            name: [
                beside.submit(_compile, source, name, levels[name], found, Path(folder)) for source in sources
            ]
            for name in old
        }
        for name, compiled in objects.items():
            made = Path(folder) / f"{name}.so"
            _run("-shared", *(str(each.result()) for each in compiled), "-lm", "-o", str(made))
            made.replace(NATIVE / made.name)  # whole or absent


def _current(library: Path, found: str) -> bool:
    """Return whether a library was made from these sources, by this version of this file."""
    if not library.exists() or library.stat().st_mtime < Path(__file__).stat().st_mtime:
        return False
    return found.encode() in library.read_bytes()


def _compile(source: Path, level: str, flags: list[str], found: str, folder: Path) -> Path:
    """Return the object file of a source for one level; ``cpu.c`` must run on every processor."""
    target = folder / f"{level}-{source.stem}.o"
    own = [f'-DSOURCES="{found}"'] if source.name == "cpu.c" else flags
    contract = "fast" if source.name in FUSED else "off"
    options = [*FLAGS, *own, f"-DLEVEL_{level}", f"-ffp-contract={contract}"]
    _run(*options, "-c", str(source), "-o", str(target))
    return target


def _run(*arguments: str) -> None:
    command = [*shlex.split(os.environ.get("CC", "cc")), *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603


if __name__ == "__main__":
    compile_kernels()
