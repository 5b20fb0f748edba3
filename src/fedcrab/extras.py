"""Optional packages, the extra of fedcrab that installs each, and names that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

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
    "nvflare": "nvflare",
    "distributed": "cluster",
    "pandas": "pandas",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "datasets": "datasets",
    "fsspec": "s3",
    "s3fs": "s3",
}


def need_extra(extra: str, what: str) -> None:
    """Raise ``ConfigError`` unless every package of an extra is installed. Call it before any work starts."""
    if missing := _missing(extra):
        raise ConfigError(f"{what} needs {', '.join(missing)}: {install(extra)}")


def has_extra(extra: str) -> bool:
    """Return whether every package of an extra is installed."""
    return not _missing(extra)


def missing_package(error: ImportError) -> str | None:
    """Return what to tell the user if an import failed because an optional package is not installed."""
    name = (error.name or "").partition(".")[0]
    return f"this needs {name}: {install(EXTRAS[name])}" if name in EXTRAS else None


def refuse_import(package: str, engine: str, error: ImportError) -> NoReturn:
    """Raise ``ImportError`` with what to install, because this package's engine cannot be imported.

    ``python -m PACKAGE`` imports the package before it runs anything. There the sentence alone is printed,
    and the exit code is 2.
    """
    sentence = f"{package} needs {engine}: {install(package.rpartition('.')[2])}"
    if sys.argv[:1] == ["-m"] and package in sys.orig_argv and missing_package(error):
        sys.stderr.write(f"Error: {sentence}\n")
        raise SystemExit(2)
    raise ImportError(sentence, name=error.name) from error


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'fedcrab[{extra}]'"


def on_first_use(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package (PEP 562) that imports each name when it is first used.

    ``places`` lists the names that each module provides. A module without names is itself the attribute.
    If an optional package is missing, the ``ImportError`` says what to install.
    """
    modules = {name: module for module, names in places.items() for name in names}
    whole = {module.rpartition(".")[2]: module for module, names in places.items() if not names}

    def attribute(name: str) -> Any:
        if name not in modules and name not in whole:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = import_module(modules[name] if name in modules else whole[name])
        except ImportError as error:
            if needed := missing_package(error):
                raise type(error)(f"{package}.{name}: {needed}", name=error.name) from error
            raise
        value = getattr(found, name) if name in modules else found
        setattr(sys.modules[package], name, value)
        return value

    return attribute


class CallableModule(ModuleType):
    """A module that can be called: ``fedcrab.report`` is both a package and a function."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the main function."""
        return self.__dict__["__main_function__"](*given, **named)


def can_be_called(module: str, function: Callable[..., Any]) -> None:
    """Make a module callable as this function; its signature and help are those of the function."""
    found = sys.modules[module]
    found.__class__ = CallableModule
    found.__dict__["__main_function__"] = found.__dict__["__wrapped__"] = function


def _missing(extra: str) -> list[str]:
    return [name for name, its in EXTRAS.items() if its == extra and not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
