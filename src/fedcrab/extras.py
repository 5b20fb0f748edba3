"""Optional packages, and the extra of fedcrab that installs each."""

from __future__ import annotations

from importlib.util import find_spec

from fedcrab.errors import ConfigError

EXTRAS = {
    "matplotlib": "simulate",
    "pooch": "simulate",
    "pydantic": "simulate",
    "scipy": "simulate",
    "sklearn": "simulate",
    "torch": "simulate",
    "cryptography": "sign",
    "flwr": "flower",
    "distributed": "cluster",
}


def need_extra(extra: str, what: str) -> None:
    """Raise ``ConfigError`` unless every package of an extra is installed: before anything is done."""
    if missing := _missing(extra):
        raise ConfigError(f"{what} needs {', '.join(missing)}: {install(extra)}")


def has_extra(extra: str) -> bool:
    """Whether every package of an extra is installed."""
    return not _missing(extra)


def missing_package(error: ImportError) -> str | None:
    """The sentence for an import that failed because an optional package is not installed."""
    name = (error.name or "").partition(".")[0]
    return f"this needs {name}: {install(EXTRAS[name])}" if name in EXTRAS else None


def install(extra: str) -> str:
    """How to install an extra."""
    return f"pip install 'fedcrab[{extra}]'"


def _missing(extra: str) -> list[str]:
    return [name for name, its in EXTRAS.items() if its == extra and not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
