"""Ed25519 over a certificate's canonical bytes, its own signature left out.

Needs the package ``cryptography`` (the extra ``sign``). Keys are PEM files: a private one as
``openssl genpkey -algorithm ed25519`` writes it, a public one as ``openssl pkey -pubout`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcrab.certify.document import canonical
from fedcrab.errors import ConfigError
from fedcrab.history.disk import read_regular

ALGORITHM = "ed25519"
LARGEST_KEY = 2**16  # bytes
PLACE = "signature"


def _ed25519() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError("signatures need the package cryptography: pip install 'fedcrab[sign]'") from error
    return serialization, ed25519


def signed(table: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """The certificate with a signature by this private key."""
    private = _load(key, private=True)
    signature = {
        "algorithm": ALGORITHM,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "value": private.sign(_message(table)).hex(),
    }
    return {**table, PLACE: signature}


def signature_problems(table: Mapping[str, Any], key: Path | None) -> list[str]:
    """What is wrong with the signature; nothing where there is none and none is asked for."""
    found = table.get(PLACE)
    if found is None:
        return [] if key is None else ["signature: missing, where a key was given to check it by"]
    if problem := _shape_problem(found):
        return [problem]
    own, _ = bytes.fromhex(found["public_key"]), _ed25519()
    if key is not None and _load(key, private=False).public_bytes_raw() != own:
        return [f"signature.public_key: another key than that of {key}"]
    if not _holds(own, bytes.fromhex(found["value"]), _message(table)):
        return ["signature.value: does not hold for this certificate and its key"]
    return []


def _message(table: Mapping[str, Any]) -> bytes:
    return canonical({**table, PLACE: None})


def _shape_problem(found: Any) -> str | None:
    if not isinstance(found, dict) or {*found} != {"algorithm", "public_key", "value"}:
        return "signature: not algorithm, public_key and value"
    if found["algorithm"] != ALGORITHM:
        return f"signature.algorithm: not {ALGORITHM}"
    for name, digits in (("public_key", 64), ("value", 128)):
        text = found[name]
        if not isinstance(text, str) or len(text) != digits or not {*text} <= {*"0123456789abcdef"}:
            return f"signature.{name}: not {digits} digits of hexadecimal"
    return None


def _holds(key: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    _, ed25519 = _ed25519()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _load(path: Path, *, private: bool) -> Any:
    """The key in a PEM file."""
    serialization, ed25519 = _ed25519()
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    content = read_regular(path, limit=LARGEST_KEY)
    try:
        load = serialization.load_pem_private_key if private else serialization.load_pem_public_key
        key = load(content, password=None) if private else load(content)
    except Exception as error:  # what a stranger's file provokes in a parser is not ours to list
        raise ConfigError(f"{path}: {_wanted(private)} cannot be read from it") from error
    if not isinstance(key, kind):
        raise ConfigError(f"{path}: not {_wanted(private)}")
    return key


def _wanted(private: bool) -> str:
    return f"an Ed25519 {'private' if private else 'public'} key in PEM, without a password,"
