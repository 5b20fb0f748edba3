"""For all tests: patience with slow examples, files in memory, and the longest tests first."""

import ast
import functools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # the time says more about the machine than the code
settings.load_profile("unhurried")

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
