"""Imports point one way: down this list."""

import ast
from pathlib import Path

import fedcrab

ORDER = [
    "__main__",
    "cli",
    "nvflare",
    "flower",
    "recording",
    "demo",
    "reproduce",
    "report",
    "experiment",
    "simulate",
    "certificate",
    "module_probe",
    "audit",
    "evaluate",
    "loggers",
    "recover",
    "detect",
    "rollback",
    "train",
    "history",
    "attack",
    "aggregate",
    "lbfgs",
    "files",
    "sha256",
    "admission",
    "function_fleet",
    "state_dicts",
    "vectors",
    "native",
    "types",
    "seeds",
    "html",
    "progress",
    "terminal_table",
    "terminal",
    "extras",
    "name_value",
    "errors",
]
ROOT = Path(fedcrab.__file__).parent


def part_of(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("fedcrab.") and part_of(name) != "__version__"}


def test_every_module_has_its_place() -> None:
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}
    assert parts - {"__init__"} <= set(ORDER)


def test_imports_point_down() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        here = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        wrong += [
            f"{path.relative_to(ROOT)} imports {name}"
            for name in imports(path)
            if ORDER.index(part_of(name)) < ORDER.index(here)
        ]
    assert not wrong
