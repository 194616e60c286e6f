"""Secrets of the services behind tools: declared in `policies/secrets.toml`, kept where no tool and no model sees them.

    [secrets.shop_api]
    from_env = "SHOP_API_KEY"            # or from_file = "/run/secrets/shop_api", readable by its owner only
    hosts = ["api.shop.example:443"]     # a secret goes to these and nowhere else
    header = "Authorization"             # how the broker injects it into a request (the default)
    format = "Bearer {}"                 # (the default)
    readable = false                     # true: a tool that names it in its Isolation may have the value itself

Invariant: a value never leaves this module but into a request to one of its hosts, into the redactor, or to a tool
whose isolation names a secret that is declared readable. Loading takes the variables out of the environment, so that
code in the gateway's process and processes it starts do not find them there. (The kernel keeps the environment a
process was started with in /proc/PID/environ, for the same user: prefer files.) It sends nothing itself.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentops.act.sandbox.egress import destination
from agentops.errors import PolicyError, SandboxError
from agentops.types import Problem

FILE = "secrets.toml"
MAX_BYTES = 16 * 1024
_KEYS = ("from_env", "from_file", "hosts", "header", "format", "readable")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_VALUE = re.compile(r"[\x20-\x7e]{8,}")  # what a header may hold; shorter ones would be redacted out of every text
_taken: dict[str, str] = {}  # values of variables that are out of the environment already, for a second load


@dataclass(frozen=True, slots=True)
class Secret:
    """One declared secret. `value` is "" when the deployment does not provide it: then nothing can use it."""

    name: str
    origin: str  # the variable or the file
    hosts: frozenset[str]
    header: str = "Authorization"
    format: str = "Bearer {}"
    readable: bool = False
    value: str = field(default="", repr=False)

    def injected(self) -> str:
        """The header's text."""
        return self.format.replace("{}", self.value)


class Secrets:
    """The secrets of one deployment, by name."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._secrets = {secret.name: secret for secret in secrets}

    def __repr__(self) -> str:
        return f"Secrets({sorted(self._secrets)})"

    @classmethod
    def load(cls, policies: Path, environ: MutableMapping[str, str] | None = None) -> "Secrets":
        """Read `policies`/secrets.toml (no file: no secrets) and every value, and clear the variables.

        Args:
            policies: the project's policies folder.
            environ: where variables are taken out of; default: the process's environment.

        Raises:
            PolicyError: the file has problems, or a value cannot be a secret (its origin is named, never the value).
        """
        declared, found = _read(policies)
        if found:
            raise PolicyError("\n".join(map(str, found)))
        environ = os.environ if environ is None else environ
        made = [_with_value(secret, table, environ) for secret, table in declared]
        for secret, table in declared:
            if "from_env" in table:
                environ.pop(secret.origin, None)
        return cls(made)

    @property
    def values(self) -> tuple[str, ...]:
        """For the redactor: every value, and every header that would carry one."""
        known = [secret for secret in self._secrets.values() if secret.value]
        return tuple(dict.fromkeys(text for secret in known for text in (secret.value, secret.injected())))

    def get(self, name: str, allowed: Iterable[str]) -> Secret:
        """The secret `name` for a tool that may ask for `allowed`.

        Raises:
            SandboxError: the tool may not ask for it, or the deployment does not provide it.
        """
        if name not in allowed:
            raise SandboxError(f"secret {name[:64]!r} is not in the tool's Isolation(secrets=…)")
        secret = self._secrets.get(name)
        if secret is None:
            raise SandboxError(f"secret {name!r} is not declared: add [secrets.{name}] to policies/{FILE}")
        if not secret.value:
            raise SandboxError(f"secret {name!r} has no value here: provide {secret.origin}")
        return secret


def declared_secrets(policies: Path) -> list[Secret]:
    """What `policies`/secrets.toml declares without a fault; without values."""
    return [secret for secret, _ in _read(policies)[0]]


def secret_problems(policies: Path) -> list[Problem]:
    """Everything wrong with secrets.toml; [] when it is right or absent. Values are not looked at."""
    return _read(policies)[1]


def _read(policies: Path) -> tuple[list[tuple[Secret, Mapping[str, Any]]], list[Problem]]:
    file, shown = policies / FILE, f"{policies.name}/{FILE}"
    if not file.is_file():
        return [], []
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return [], [Problem(shown, int(at[1]) if at else 0, f"not valid TOML: {error}")]
    found = [Problem(shown, 0, f"[{key}] is not known: use [secrets.NAME]") for key in sorted(set(table) - {"secrets"})]
    declared: list[tuple[Secret, Mapping[str, Any]]] = []
    entries = table.get("secrets", {})
    for name, settings in entries.items() if isinstance(entries, dict) else ():
        line = next((at for at, row in enumerate(text.splitlines(), 1) if row.strip() == f"[secrets.{name}]"), 0)
        try:
            declared.append((_declared(name, settings), settings))
        except (PolicyError, SandboxError) as error:
            found.append(Problem(shown, line, f"secret {name[:64]!r}: {error}"))
    return declared, found


def _declared(name: str, settings: Any) -> Secret:
    """A declaration without its value."""
    if not _NAME.fullmatch(name) or not isinstance(settings, dict):
        raise PolicyError("is not a table with a lower-case name of letters, digits and _")
    if unknown := sorted(set(settings) - set(_KEYS)):
        raise PolicyError(f"{unknown[0]!r} is not known: use {', '.join(_KEYS)}")
    origins = [key for key in ("from_env", "from_file") if key in settings]
    if len(origins) != 1 or not isinstance(settings[origins[0]], str):
        raise PolicyError("needs exactly one of from_env and from_file, a text")
    origin = settings[origins[0]]
    if origins[0] == "from_env" and not _VARIABLE.fullmatch(origin):
        raise PolicyError(f"from_env {origin[:128]!r} is no name of a variable: use capitals, digits and _")
    if origins[0] == "from_file" and not Path(origin).is_absolute():
        raise PolicyError(f"from_file {origin!r} is not absolute: secrets lie outside the project")
    hosts = settings.get("hosts", [])
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise PolicyError('hosts must be a list of texts like "api.example.com:443"')
    readable = settings.get("readable", False)
    if not isinstance(readable, bool):
        raise PolicyError("readable must be true or false")
    if not hosts and not readable:
        raise PolicyError("has no hosts and is not readable: nothing could use it")
    header, form = settings.get("header", "Authorization"), settings.get("format", "Bearer {}")
    if not isinstance(header, str) or not _HEADER.fullmatch(header):
        raise PolicyError("header must be a name of letters, digits and -")
    if not isinstance(form, str) or form.count("{}") != 1 or not re.fullmatch(r"[\x20-\x7e]{2,200}", form):
        raise PolicyError('format must be printable ASCII with one {} in it, like "Bearer {}"')
    return Secret(name, origin, frozenset(destination(host).endpoint for host in hosts), header, form, readable)


def _with_value(secret: Secret, settings: Mapping[str, Any], environ: MutableMapping[str, str]) -> Secret:
    if "from_env" in settings:
        value = environ.get(secret.origin, "")
        if environ is os.environ:
            value = _taken[secret.origin] = value or _taken.get(secret.origin, "")
    else:
        value = _from_file(secret)
    if value and not _VALUE.fullmatch(value):
        raise PolicyError(
            f"secret {secret.name!r}: {secret.origin} holds what is no secret: at least 8 characters of printable ASCII"
        )
    return replace(secret, value=value)


def _from_file(secret: Secret) -> str:
    try:
        descriptor = os.open(secret.origin, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise PolicyError(f"secret {secret.name!r}: {secret.origin} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
            raise PolicyError(
                f"secret {secret.name!r}: {secret.origin} must be a file that only its owner reads: chmod 400 it"
            )
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise PolicyError(f"secret {secret.name!r}: {secret.origin} has more than {MAX_BYTES} bytes")
    return data.decode("utf-8", "replace").strip("\r\n")
