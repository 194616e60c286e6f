"""An identity provider for tests: real keys, honest tokens, and forged ones made by hand."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://idp.example.com/", "agentops"
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
STRANGER = ed25519.Ed25519PrivateKey.generate()
TABLES = """
[issuers.corp]
issuer = "https://idp.example.com/"
audience = "agentops"
algorithms = ["RS256", "PS256", "ES256", "ES384", "EdDSA"]
jwks = "corp.json"
tenant = "default"
roles_claim = "groups"
roles = { shoppers = "customer", desk = "staff", money = "finance" }
leeway_s = 5

[actors.frontend]
scopes = ["orders:read", "orders:write", "approvals:decide"]

[actors."planner@corp"]
scopes = ["orders:read"]
"""


def jwk(algorithm: str, kid: str | None = None, **changes: Any) -> dict[str, Any]:
    """The public JWK of our key for `algorithm`."""
    public = KEYS[algorithm].public_key()
    known = jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    known.pop("key_ops", None)
    return {**known, "kid": algorithm if kid is None else kid, "use": "sig", **changes}


def jwks(*algorithms: str) -> str:
    """A JWK set with the public keys of `algorithms` (none: all)."""
    return json.dumps({"keys": [jwk(algorithm) for algorithm in algorithms or KEYS]})


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of a good token; None takes one out."""
    now = int(time.time())
    times = {"iat": now - 1, "exp": now + 12 * 3600}
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "C-1", "groups": ["shoppers"], **times}
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


def mint(algorithm: str = "EdDSA", header: dict[str, Any] | None = None, key: Any = None, **changes: Any) -> str:
    """A signed token."""
    headers = {"kid": algorithm, **(header or {})}
    kept = {name: value for name, value in headers.items() if value is not None}
    return jwt.encode(claims(**changes), key or KEYS[algorithm], algorithm, headers=kept)


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hand(header: dict[str, Any], payload: Any, secret: bytes | None = None, key: Any = None) -> str:
    """A token no library would make: unsigned, or with a MAC under `secret`, or signed with an Ed25519 `key`."""
    body = f"{part(header)}.{part(payload)}"
    signature = hmac.new(secret, body.encode(), hashlib.sha256).digest() if secret is not None else b""
    return f"{body}.{part(key.sign(body.encode()) if key is not None else signature)}"


def pem(algorithm: str) -> bytes:
    """Our public key as the text an attacker can download."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return KEYS[algorithm].public_key().public_bytes(serialization.Encoding.PEM, form)
