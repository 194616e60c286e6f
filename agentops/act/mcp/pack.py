"""Packs of another server's tools: `[mcp]` in pack.toml and mcp.lock become Tools, without the server.

    [mcp]
    command = ["python", "server.py"]       # a program beneath the pack's folder or on PATH; it gets no network
    # url = "https://host/mcp"              # or a server over HTTP; token = "SECRET" names its bearer token
    secrets = ["crm_key"]                   # readable secrets, as environment variables (CRM_KEY)
    files = ["data"]                        # folders of the project that it may read
    timeout_s = 10

    [mcp.tools.search]                      # what is not named here does not exist
    effect = "read"                         # ours: what a server says about its tools is not believed
    scopes = ["crm:read"]
    confidentiality = "personal"

Invariant: effect, scopes, labels and limits come from pack.toml; name, description and schemas from mcp.lock. A tool
that is not admitted, or not pinned, does not exist. Loading starts nothing and connects to nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from agentops.act.mcp import lock, schema
from agentops.act.mcp.remote import Declared, Server
from agentops.act.sandbox.egress import destination
from agentops.act.sandbox.secrets import declared_secrets
from agentops.act.tool import digested
from agentops.errors import AgentopsError, MCPError, PolicyError
from agentops.parsers import URL_MARK
from agentops.parsers import url as web_address
from agentops.project import line_of
from agentops.types import CacheRule, Effect, Isolation, Labels, Problem, Tool, ToolSpec

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SERVER = ("command", "url", "token", "secrets", "files", "timeout_s", "memory_mb", "least", "shared", "tools")
_TOOL = (
    *("effect", "scopes", "integrity", "confidentiality", "amount", "idempotent", "cache", "rename", "timeout_s"),
    *("invalidates", "reads", "urls"),
)
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("command", "secrets", "files", "scopes", "invalidates", "reads", "urls"), list),
    **dict.fromkeys(("url", "token", "least", "effect", "integrity", "confidentiality", "amount", "rename"), str),
    **dict.fromkeys(("shared", "idempotent"), bool),
    **dict.fromkeys(("cache", "tools"), dict),
    "timeout_s": (int, float),
    "memory_mb": int,
}
SECRETS = "policies/secrets.toml"
DEFAULT_S = 10.0  # deadline of one call
MEMORY_MB = 1024  # of a server's process: an interpreter with an MCP library takes 100 to 300


def tools(root: Path, folder: Path, table: Mapping[str, Any]) -> tuple[tuple[Tool, ...], list[Problem]]:
    """The tools of the pack in `folder`, and everything wrong with its declaration.

    Args:
        root: the project's folder.
        folder: root/tools/NAME.
        table: the parsed pack.toml.
    """
    file = folder / "pack.toml"
    shown = str(file.relative_to(root))
    try:
        declared = server(folder, table)
        _check_secrets(declared, root / "policies")
    except AgentopsError as error:
        return (), [Problem(shown, line_of(file, r"^\[mcp\]"), str(error))]
    try:
        pinned = lock.read(folder)
    except MCPError as error:
        return (), [Problem(str((folder / lock.FILE).relative_to(root)), 0, str(error))]
    found: list[Tool] = []
    problems: list[Problem] = []
    admitted = table["mcp"].get("tools", {})
    if not admitted:
        problems.append(Problem(shown, line_of(file, r"^\[mcp\]"), "admits no tool: add [mcp.tools.NAME] tables"))
    for name, settings in admitted.items():
        try:
            found.append(_tool(declared, pinned.get(name), name, settings, table["mcp"]))
        except AgentopsError as error:
            line = line_of(file, rf'^\[mcp\.tools\."?{re.escape(name)}"?\]')
            problems.append(Problem(shown, line, f"tool {name[:128]!r}: {error}"))
    return tuple(found), problems


def admitted(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The `[mcp.tools.NAME]` tables of a pack.toml, by the server's names."""
    found = table["mcp"].get("tools", {}) if isinstance(table.get("mcp"), dict) else {}
    return {name: one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}


def server(folder: Path, table: Mapping[str, Any]) -> Server:
    """The server that pack.toml declares.

    Raises:
        MCPError: the `[mcp]` table is not acceptable; says what to write.
    """
    given = _settings(table.get("mcp"), _SERVER, "[mcp]")
    if ("command" in given) == ("url" in given):
        raise MCPError("[mcp] needs exactly one of command and url")
    if given.get("least", "landlock") not in ("landlock", "bubblewrap"):
        raise MCPError("[mcp] least must be 'landlock' or 'bubblewrap': the program of others always runs confined")
    texts = {key: tuple(map(str, given.get(key, ()))) for key in ("command", "secrets", "files")}
    if "url" in given:
        for key in ("secrets", "files", "memory_mb", "least", "shared"):
            if key in given:
                raise MCPError(f"[mcp] {key} is for a command; a server over HTTP gets a token at most")
        return Server(folder.name, folder, url=_url(given["url"]), token=given.get("token", ""))
    if "token" in given:
        raise MCPError("[mcp] token is sent to a url; a command gets secrets")
    limits = Isolation(
        least=given.get("least", "landlock"),
        secrets=texts["secrets"],
        files=texts["files"],
        memory_mb=given.get("memory_mb", MEMORY_MB),
    )
    command = _command(folder, texts["command"])
    return Server(folder.name, folder, command, isolation=limits, shared=given.get("shared", False))


def _tool(declared: Server, pinned: lock.Definition | None, name: str, given: Any, defaults: Mapping[str, Any]) -> Tool:
    settings = _settings(given, _TOOL, "its table")
    if pinned is None:
        raise MCPError(f"it is not pinned: look at what its server says with `agentops tools pin {declared.pack}`")
    ours = settings.get("rename", name)
    if not _NAME.fullmatch(ours):
        raise MCPError('its name is not [a-z][a-z0-9_]*, at most 64 characters: add rename = "…"')
    effect: Effect = settings.get("effect", "")
    if effect not in get_args(Effect):
        raise MCPError(f"effect must be one of {', '.join(get_args(Effect))}, got {effect!r}")
    parameters = schema.strict(schema.checked(pinned.content.get("inputSchema"), "its arguments"))
    parameters = _with_urls(parameters, settings.get("urls", ()))
    if "outputSchema" in pinned.content:
        schema.checked(pinned.content["outputSchema"], "its result")
    properties = parameters.get("properties", {})
    amount = settings.get("amount", "")
    if effect == "money" and properties.get(amount, {}).get("type") != "integer":
        raise MCPError(f"it moves money: amount must name its integer argument, got {amount!r}")
    if effect == "money" and amount not in parameters.get("required", ()):
        raise MCPError(f"it moves money: its argument {amount!r} must be required")
    if effect == "exec" and not declared.command:
        raise MCPError("it runs code: only a server that this machine confines (command = […]) may do that")
    if effect != "read" and "cache" in settings:
        raise MCPError(f"it has effect {effect!r}: only reads may be cached")
    timeout = settings.get("timeout_s", defaults.get("timeout_s", DEFAULT_S))
    if not 0 < timeout <= 3600:
        raise MCPError(f"timeout_s = {timeout!r} must be above 0 and at most 3600")
    spec = ToolSpec(
        name=ours,
        pack=declared.pack,
        description=str(pinned.content.get("description", "")),
        parameters=parameters,
        effect=effect,
        scopes=frozenset(map(str, settings.get("scopes", ()))),
        timeout_s=float(timeout),
        cache=_cache(settings.get("cache")),
        invalidates=tuple(settings.get("invalidates", ())),
        idempotent=settings.get("idempotent", False) or effect == "read",
        amount_arg=amount,
        labels=_labels(settings),
        reads=tuple(settings.get("reads", ())),
        isolation=replace(declared.isolation, fresh=effect == "exec") if declared.command else None,
    )
    for template in (*spec.invalidates, *spec.reads, *(spec.cache.tags if spec.cache else ())):
        for hole in re.findall(r"\{(\w+)\}", template):
            if hole not in properties:
                raise MCPError(f"tag {template!r} names {hole!r}, which is not an argument")
    spec = digested(spec, f"mcp {declared.origin} {declared.token} {pinned.digest}")
    return Tool(spec, Declared(declared, pinned, spec))


def _check_secrets(server: Server, policies: Path) -> None:
    """Raises:
    MCPError: a secret is not declared for this use.
    """
    known = {secret.name: secret for secret in declared_secrets(policies)}
    for name in (*server.isolation.secrets, *filter(None, [server.token])):
        if name not in known:
            raise MCPError(f"[mcp] secret {name[:64]!r} is not declared: add [secrets.{name[:64]}] to {SECRETS}")
        if server.command and not known[name].readable:
            raise MCPError(
                f"[mcp] secret {name!r} is not readable: {SECRETS} lets a command have it with readable = true"
            )
        if server.url and web_address(server.url).endpoint not in known[name].hosts:
            raise MCPError(f"[mcp] secret {name!r} does not go to {server.url!r}: add its host in {SECRETS}")


def _settings(given: Any, known: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise MCPError(f"{where} is not a table")
    for key, value in given.items():
        if key not in known:
            hint = ": a command has no network; use url for a server elsewhere" if key == "hosts" else ""
            raise MCPError(f"{where} has no setting {key!r}{hint}; settings: {', '.join(known)}")
        if not isinstance(value, _KINDS[key]) or (isinstance(value, bool) and _KINDS[key] is not bool):
            raise MCPError(f"{where}: {key} has a value of a wrong type")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise MCPError(f"{where}: {key} must be a list of texts")
    return given


def _with_urls(parameters: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """`parameters` with these arguments declared as web addresses: the policies see their host and its addresses."""
    properties = dict(parameters.get("properties", {}))
    for name in names:
        if properties.get(name, {}).get("type") != "string":
            raise MCPError(f"urls names {name!r}, which is no argument of type string")
        properties[name] = {**properties[name], "format": "uri", URL_MARK: ["http", "https"]}
    return {**parameters, "properties": properties}


def _labels(settings: Mapping[str, Any]) -> Labels:
    """Integrity is "untrusted" unless the pack says otherwise: results of another's server are an outsider's words."""
    integrity, confidentiality = settings.get("integrity", "untrusted"), settings.get("confidentiality", "internal")
    if integrity not in ("trusted", "untrusted"):
        raise MCPError(f"integrity must be 'trusted' or 'untrusted', got {integrity!r}")
    if confidentiality not in ("public", "internal", "personal", "secret"):
        raise MCPError(f"confidentiality must be public, internal, personal or secret, got {confidentiality!r}")
    return Labels(integrity, confidentiality)


def _cache(given: Mapping[str, Any] | None) -> CacheRule | None:
    if given is None:
        return None
    ttl, tags = given.get("ttl_s"), given.get("tags", [])
    if set(given) - {"ttl_s", "tags"} or not isinstance(ttl, int | float) or ttl <= 0 or not isinstance(tags, list):
        raise MCPError("cache must be { ttl_s = SECONDS, tags = [...] }")
    return CacheRule(float(ttl), tuple(map(str, tags)))


def _url(text: str) -> str:
    try:
        found = web_address(text)
    except PolicyError:
        found = None
    loopback = found is not None and found.literal and (found.host == "::1" or found.host.startswith("127."))
    if found is None or (found.scheme != "https" and not loopback):
        raise MCPError(f"[mcp] url {text[:200]!r} is not acceptable: https, or http to 127.0.0.1")
    destination(found.endpoint)
    return found.text


def _command(folder: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """The command as it is written: a program from PATH is looked for when it is started, not when it is read."""
    if not words or not words[0]:
        raise MCPError("[mcp] command is empty")
    inside = (folder / words[0]).resolve()
    if "/" in words[0] and not (inside.is_relative_to(folder.resolve()) and inside.is_file()):
        raise MCPError(f"[mcp] command {words[0][:200]!r} is not a file beneath the pack's folder")
    return words
