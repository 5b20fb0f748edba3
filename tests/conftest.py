"""For all tests: one thread, files in memory, patience with slow examples, and the longest tests first."""

import ast
import functools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the time says more about the machine than about the code. `make torture` tries more examples.
settings.register_profile("brief", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile("brief")

# Before numpy and torch are imported, and for the processes that tests start: the workers beside this one
# have the other cores, and the results do not depend on threads or on workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FEDCRAB_WORKERS", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a process that compiles torch's modules starts half as fast
os.environ.pop("COLUMNS", None)  # set in the workers of xdist: commands would make narrower tables

ROOT = Path(__file__).parent.parent
MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30  # bytes


def in_memory() -> bool:
    """Whether there is a file system in memory that is large enough and may hold programs."""
    if "TMPDIR" in os.environ or not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize >= ENOUGH and not found.f_flag & os.ST_NOEXEC


if in_memory():  # a history syncs to the disk at every step, and a disk takes 10 ms each time
    os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None


@functools.cache
def long_tests(path: Path) -> frozenset[str]:
    """The tests in a file that are marked `long` themselves; xdist knows tests by their names only."""
    tests = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    return frozenset(t.name for t in tests if any("mark.long" in ast.unparse(d) for d in t.decorator_list))


def group_of(nodeid: str) -> str:
    """The tests of a file share a worker, and so its fixtures; a long test goes to any worker."""
    path, _, test = nodeid.partition("::")
    return nodeid if test.partition("[")[0] in long_tests(ROOT / path) else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest first: `long(60)` marks a test, or with `pytestmark` a file, of about 60 seconds."""

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("long")
        return mark.args[0] if mark else 0

    items.sort(key=lambda item: -seconds(item))  # stable: the rest stays in its order


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Groups in the order above."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler
