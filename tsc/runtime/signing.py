"""Signatures of Packages: Ed25519 (RFC 8032) over the header, which has the hash of every part.

Keys are PEM files as OpenSSL and ssh-keygen write them too. A Package may have signatures of several keys; it is trusted where
one of them is by a key that is. Needs the library `cryptography` (the extra `sign`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from tsc.errors import InputError, LaunchError, PackageError
from tsc.runtime.files import open_regular, write_atomically


class Whoever(Enum):
    """Trust for what looks into a Package and runs no code of it, whatever the environment says."""

    ANYBODY = "anybody"


#: Whom to trust: files of public keys, or folders with such files (`*.pub`, `*.pem`), or the 32 bytes of keys.
Trust: TypeAlias = "str | os.PathLike[str] | bytes | Sequence[str | os.PathLike[str] | bytes] | Whoever"

#: Stands before what is signed: a signature of something else is none of a Package.
_PURPOSE = b"tsc package, signed header, version 1\0"
_KEY, _SIGNATURE = 32, 64
_MOST = 1 << 16  # bytes of a key's file


def generate(path: Path) -> Path:
    """Write a new private key, for its owner's eyes, and beside it the public one, whose file's name this returns. Raises
    PackageError where there is a file already, or none can be written."""
    public = path.with_name(f"{path.name}.pub")
    for taken in (path, public):
        if taken.exists():
            raise PackageError(f"'{taken}' is there already, and keys are not written over; give another name")
    ed25519, serialization = _library()
    key = ed25519.Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private)
    except OSError as error:
        raise PackageError(f"cannot write the key '{path}' ({error.strerror}); give another name") from error
    write_atomically(public, [key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)])
    return public


def signature(payload: bytes, private_key: Path) -> tuple[str, str]:
    """The public key of a private one, and its signature of a payload, in hexadecimal. Raises InputError for what is no key."""
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_private_key(_read(private_key), None)
    except (ValueError, TypeError) as error:  # the second where it has a password
        reason = f"'{private_key}' is no private key without a password ({error}); `tsc pack keygen` makes one"
        raise InputError(reason) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError(f"'{private_key}' is no Ed25519 key; `tsc pack keygen` makes one")
    return _raw(key.public_key()).hex(), key.sign(_PURPOSE + payload).hex()


def signers(payload: bytes, signatures: Mapping[str, str]) -> list[str]:
    """Those of the keys (in hexadecimal) whose signature of a payload is right."""
    ed25519, _ = _library()
    invalid = import_module("cryptography.exceptions").InvalidSignature
    found = []
    for key, own in sorted(signatures.items()):
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(own), _PURPOSE + payload)
        except (invalid, ValueError):
            continue
        found.append(key)
    return found


def trusted(trust: Trust) -> list[str]:
    """Keys, in hexadecimal. Raises InputError for what is no public key, and where there is none."""
    each = [trust] if isinstance(trust, str | bytes | os.PathLike) else [] if isinstance(trust, Whoever) else list(trust)
    found = [key for one in each for key in _keys(one)]
    if not found:
        raise InputError(f"no key is trusted by {trust!r}; give files of public keys")
    return found


def check_trusted(payload: bytes, signatures: Mapping[str, str], trust: Trust, where: str) -> None:
    """Raise PackageError where nobody who is trusted has signed, and InputError as `trusted`."""
    if trust is Whoever.ANYBODY:
        return
    keys = trusted(trust)
    if not set(signers(payload, signatures)) & set(keys):
        by = f"has signatures, by {', '.join(key[:16] for key in signatures)}, but none" if signatures else "has no signature"
        raise PackageError(f"{where} {by} of a key that is trusted ({', '.join(key[:16] for key in keys)}); sign it with "
                           "`tsc pack sign`, or take it from whom you trust")


def is_signatures(value: Mapping[str, Any]) -> bool:
    """Whether keys and signatures are as long as they must be, in hexadecimal."""
    return all(isinstance(own, str) and _is_hex(key, _KEY) and _is_hex(own, _SIGNATURE) for key, own in value.items())


def _is_hex(text: str, count: int) -> bool:
    return len(text) == 2 * count and all(c in "0123456789abcdef" for c in text)


def _keys(one: str | os.PathLike[str] | bytes) -> Iterable[str]:
    if isinstance(one, bytes):
        if len(one) != _KEY:
            raise InputError(f"a public key has {_KEY} bytes, not {len(one)}; give the file of one, or its bytes")
        return [one.hex()]
    path = Path(one)
    if path.is_dir():
        return [_public(file) for file in sorted(path.iterdir()) if file.suffix in (".pub", ".pem") and file.is_file()]
    return [_public(path)]


def _public(path: Path) -> str:
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_public_key(_read(path))
    except ValueError as error:
        raise InputError(f"'{path}' is no public key ({error}); give the .pub file of one") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError(f"'{path}' is no Ed25519 key; `tsc pack keygen` makes one")
    return _raw(key).hex()


def _raw(key: Any) -> bytes:
    _, serialization = _library()
    found: bytes = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return found


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_MOST)
    except OSError as error:
        raise InputError(f"cannot read the key '{path}' ({error.strerror}); check the path") from error


def _library() -> tuple[Any, Any]:
    try:
        return (import_module("cryptography.hazmat.primitives.asymmetric.ed25519"),
                import_module("cryptography.hazmat.primitives.serialization"))
    except ImportError as error:
        raise LaunchError(f"signatures need {error.name}; install tsc-compiler[sign]") from error
