"""policies/redaction.toml as rules, and the key and known values that stay on the machine.

Invariant: a file that cannot be understood redacts nothing less: `load` refuses it. The key lives in the home folder,
readable by its owner only, and is never part of a project or a data set.
"""

import os
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import re2

from agentops.errors import PolicyError
from agentops.redact.recognisers import KINDS, Rules
from agentops.redact.redactor import DEFAULT_FIELDS, Redactor
from agentops.types import Problem

FILE = "redaction.toml"
KEY_FILE = "redaction.key"
VALUES_FILE = "known_values.txt"  # in the home folder: one personal value a line
_SECTIONS = ("kinds", "patterns", "allowed_domains", "regions", "personal_fields", "keep_fields")
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PASSWD", "_CREDENTIALS", "_API_KEYS", "_REDIS_URL")


def load(
    policies: Path,
    home: Path,
    *,
    known_values: Iterable[str] = (),
    known_secrets: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Redactor:
    """The redactor of a deployment: redaction.toml (defaults without it), the key (made on first use, mode 0600), the
    environment's secrets and the list of known values in `home`/known_values.txt.

    Args:
        policies: the project's policies folder.
        home: folder of local state.
        known_values: more personal values to replace wherever they occur.
        known_secrets: more secrets, which are not in the environment.
        environment: where secrets are looked for (variables ending in _KEY, _TOKEN, …); default: the process's.

    Raises:
        PolicyError: the file has problems (all are listed), or the key file cannot be read.
    """
    rules, found = _read(policies)
    if found:
        raise PolicyError("; ".join(map(str, found)))
    listed = home / VALUES_FILE
    values = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    return Redactor(
        _key(home / KEY_FILE),
        [*known_secrets, *_secrets(os.environ if environment is None else environment)],
        known_values=[value.strip() for value in (*values, *known_values) if len(value.strip()) >= 3],
        rules=rules,
    )


def problems(policies: Path) -> list[Problem]:
    """Everything wrong with redaction.toml, with its line; [] when it is right or absent."""
    return _read(policies)[1]


def _read(policies: Path) -> tuple[Rules, list[Problem]]:
    file = policies / FILE
    shown = f"{policies.name}/{FILE}"
    if not file.is_file():
        return Rules(personal_fields=DEFAULT_FIELDS), []
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        return Rules(), [Problem(shown, _line_in(str(error)), f"not valid TOML: {error}")]
    found: list[Problem] = []

    def problem(needle: str, message: str) -> None:
        line = next((number for number, row in enumerate(text.splitlines(), 1) if needle in row), 0)
        found.append(Problem(shown, line, message))

    for key in table:
        if key not in _SECTIONS:
            problem(key, f"unknown key {key!r}; known: {', '.join(_SECTIONS)}")
    kinds = _kinds(table.get("kinds", {}), problem)
    lists = {key: _texts(key, table.get(key), problem) for key in _SECTIONS[2:]}
    for region in lists["regions"] or ():
        if len(region) != 2 or not region.isupper():
            problem(region, f"region {region!r} is not an ISO country code such as 'GB'")
    for domain in lists["allowed_domains"] or ():
        if "@" in domain or "." not in domain:
            problem(domain, f"allowed domain {domain!r} is not a domain: write 'example.com' (subdomains are included)")
    fields = (DEFAULT_FIELDS | set(lists["personal_fields"] or ())) - set(lists["keep_fields"] or ())
    rules = Rules(
        kinds=kinds,
        allowed_domains=frozenset(domain.lower() for domain in lists["allowed_domains"] or ()),
        patterns=_patterns(table.get("patterns", []), problem),
        regions=tuple(lists["regions"]) if lists["regions"] is not None else Rules().regions,
        personal_fields=frozenset(fields),
    )
    return rules, found


def _kinds(given: Any, problem: Any) -> frozenset[str]:
    names = {kind.lower(): kind for kind in KINDS}
    kinds = set(KINDS)
    if not isinstance(given, dict):
        problem("kinds", "kinds is a table of true and false, for example `name = false`")
        return frozenset(kinds)
    for name, on in given.items():
        if name not in names:
            problem(name, f"unknown kind {name!r}; kinds: {', '.join(names)}")
        elif not isinstance(on, bool):
            problem(name, f"kind {name!r} is true or false, got {on!r}")
        elif not on:
            kinds.discard(names[name])
    return frozenset(kinds)


def _patterns(given: Any, problem: Any) -> tuple[tuple[str, str], ...]:
    patterns = []
    for entry in given if isinstance(given, list) else [given]:
        kind = entry.get("kind") if isinstance(entry, dict) else None
        regex = entry.get("regex") if isinstance(entry, dict) else None
        if not isinstance(kind, str) or not isinstance(regex, str) or set(entry) - {"kind", "regex", "description"}:
            problem(
                "[[patterns]]", "a pattern has kind and regex, for example kind = 'CUSTOMER_NO', regex = 'C-[0-9]{6}'"
            )
            continue
        if not (2 <= len(kind) <= 30 and kind.replace("_", "").isalnum() and kind.isupper() and kind.isascii()):
            problem(kind, f"pattern kind {kind!r}: use 2 to 30 capital letters, digits and _")
            continue
        try:
            options = re2.Options()
            options.log_errors = False
            compiled = re2.compile(regex, options)
            if compiled.search("") is not None:
                problem(regex, f"pattern {kind!r} matches the empty text: it would match everywhere")
                continue
        except re2.error as error:
            reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
            problem(
                kind, f"pattern {kind!r} is not a valid RE2 expression (no look-around, no back-references): {reason}"
            )
            continue
        patterns.append((kind, regex))
    return tuple(patterns)


def _texts(key: str, given: Any, problem: Any) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(item, str) and item for item in given):
        problem(key, f"{key} is a list of texts")
        return None
    return given


def _key(file: Path) -> bytes:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "wb") as stream:
            stream.write(secrets.token_bytes(32))
            stream.flush()
            os.fsync(stream.fileno())
    for _ in range(100):
        key = file.read_bytes()
        if len(key) >= 16:
            return key
        _pause()  # another process has created it and not written yet
    raise PolicyError(
        f"the redaction key {str(file)!r} has {len(key)} bytes, at least 16 are needed: restore it from a backup, or "
        "remove it to make a new one (pseudonyms of old and new traces will then differ)"
    )


def _pause() -> None:
    import time

    time.sleep(0.01)


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Values of the environment that are secrets by their variable's name; parts of composite ones."""
    found = set()
    for name, value in environment.items():
        if not name.upper().endswith(_SECRET_ENDINGS):
            continue
        parts = [value]
        if name.endswith("_API_KEYS"):  # id:secret:tenant:user[:roles], comma-separated
            parts = [entry.split(":")[1] for entry in value.split(",") if entry.count(":") >= 1]
        elif "://" in value:
            parts = [value.partition("://")[2].rpartition("@")[0].partition(":")[2]]
        found.update(part for part in parts if len(part) >= 8)
    return sorted(found)


def _line_in(message: str) -> int:
    _, _, rest = message.partition("line ")
    digits = rest.split(",")[0].split(")")[0].strip()
    return int(digits) if digits.isdigit() else 0
