"""Ed25519 signatures over bytes, as plain values that fit into JSON.

Needs the package ``cryptography`` (extra ``sign``). Keys are PEM files: private keys as written by
``openssl genpkey -algorithm ed25519``, public keys as written by ``openssl pkey -pubout``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcrab.errors import ConfigError
from fedcrab.extras import install
from fedcrab.files import read_regular

ALGORITHM = "ed25519"
LARGEST_KEY = 2**16  # bytes
PLACE = "signature"  # the key of the signature in a signed table


def _ed25519() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError(f"signatures need the package cryptography: {install('sign')}") from error
    return serialization, ed25519


def check_private(key: Path) -> None:
    """Raise ``ConfigError`` unless this file contains a private key."""
    _load(key, private=True)


def check_public(key: Path) -> None:
    """Raise ``ConfigError`` unless this file contains a public key."""
    _load(key, private=False)


def sign(message: bytes, key: Path) -> dict[str, str]:
    """Return a signature of the message with this private key: algorithm, public key and value."""
    private = _load(key, private=True)
    return {
        "algorithm": ALGORITHM,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "value": private.sign(message).hex(),
    }


def problems_of(found: Any, message: bytes, key: Path | None, *, what: str) -> list[str]:
    """Return what is wrong with a signature; empty if there is none and none is required."""
    if found is None:
        return [] if key is None else ["signature: missing, but a key was given to check it with"]
    if problem := _shape_problem(found):
        return [problem]
    own, _ = bytes.fromhex(found["public_key"]), _ed25519()
    if key is not None and _load(key, private=False).public_bytes_raw() != own:
        return [f"signature.public_key: not the key in {key}"]
    if not _holds(own, bytes.fromhex(found["value"]), message):
        return [f"signature.value: not valid for this {what} and its key"]
    return []


def is_by(found: Any, message: bytes, key: Path) -> bool:
    """Return whether this is a signature of the message with this private key."""
    own = _load(key, private=True).public_key().public_bytes_raw()
    if found is None or _shape_problem(found) or bytes.fromhex(found["public_key"]) != own:
        return False
    return _holds(own, bytes.fromhex(found["value"]), message)


def _shape_problem(found: Any) -> str | None:
    if not isinstance(found, dict) or {*found} != {"algorithm", "public_key", "value"}:
        return "signature: must have algorithm, public_key and value"
    if found["algorithm"] != ALGORITHM:
        return f"signature.algorithm: must be {ALGORITHM}"
    for name, digits in (("public_key", 64), ("value", 128)):
        text = found[name]
        if not isinstance(text, str) or len(text) != digits or not {*text} <= {*"0123456789abcdef"}:
            return f"signature.{name}: must be {digits} hexadecimal digits"
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
    """Return the key in a PEM file."""
    serialization, ed25519 = _ed25519()
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    content = read_regular(path, limit=LARGEST_KEY)
    try:
        load = serialization.load_pem_private_key if private else serialization.load_pem_public_key
        key = load(content, password=None) if private else load(content)
    except Exception as error:  # a parser may raise anything on a file that is not trusted
        raise ConfigError(f"{path}: cannot read {_wanted(private)}") from error
    if not isinstance(key, kind):
        raise ConfigError(f"{path}: not {_wanted(private)}")
    return key


def _wanted(private: bool) -> str:
    return f"an Ed25519 {'private' if private else 'public'} key in PEM, without a password"
