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
    """Make the libraries that are missing or older than their sources."""
    sources, headers = sorted(NATIVE.glob("*.c")), sorted(NATIVE.glob("*.h"))
    newest = max(path.stat().st_mtime for path in [*sources, *headers, Path(__file__)])
    found = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, *headers])).hexdigest()
    levels = LEVELS if platform.machine().lower() in ("x86_64", "amd64") else {"portable": []}
    for level, flags in levels.items():
        library = NATIVE / f"{level}.so"
        if not library.exists() or library.stat().st_mtime < newest:
            _compile(sources, library, level, [*flags, f'-DSOURCES="{found}"'])


def _compile(sources: list[Path], library: Path, level: str, flags: list[str]) -> None:
    """Compile for one level; the library appears whole or not at all."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory(dir=NATIVE, prefix=".build") as folder:
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        for source, target in zip(sources, objects, strict=True):
            own = flags[-1:] if source.name == "cpu.c" else flags  # cpu.c runs everywhere
            contract = "fast" if source.name in FUSED else "off"
            options = [*FLAGS, *own, f"-DLEVEL_{level}", f"-ffp-contract={contract}"]
            _run([*compiler, *options, "-c", str(source), "-o", str(target)])
        made = Path(folder) / library.name
        _run([*compiler, "-shared", *map(str, objects), "-lm", "-o", str(made)])
        made.replace(library)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603


if __name__ == "__main__":
    compile_kernels()
