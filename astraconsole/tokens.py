"""Bearer tokens: how they are made, what is kept of them, how they arrive. Pure but for the random bytes."""

import hashlib
import secrets


def new_secret(prefix: str) -> str:
    """`<prefix>` and 32 random bytes: shown or handed over once, kept nowhere."""
    return prefix + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """What is kept of a token, in hexadecimal. No salt: nobody can try 32 random bytes."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer <token>` header's value; None for any other."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
