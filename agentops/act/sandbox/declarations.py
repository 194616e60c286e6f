"""What tools declare about the outside, checked before any of them runs: for `agentops check`.

Invariant: a project without a problem here has no isolated tool that the workers or the broker would refuse for its
declaration alone. It reads sources and policies, starts nothing and looks at no secret's value.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentops.act.sandbox.egress import destination
from agentops.act.sandbox.pool import readable
from agentops.act.sandbox.secrets import FILE, declared_secrets, secret_problems
from agentops.act.tool import Remote
from agentops.errors import SandboxError
from agentops.types import Isolation, Problem, Tool

# Modules whose only use is to reach outside the process.
_REACHING = frozenset(
    {
        *("socket", "ssl", "http.client", "urllib.request", "ftplib", "smtplib", "imaplib", "poplib", "telnetlib"),
        *("xmlrpc.client", "socketserver", "httpx", "requests", "aiohttp", "urllib3", "websockets", "paramiko", "grpc"),
        *("subprocess", "multiprocessing", "pty"),
    }
)


def declaration_problems(root: Path, policies: Path, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """Everything wrong with policies/secrets.toml and with how tools declare what they reach.

    Args:
        root: the project's folder.
        policies: its policies folder.
        tools: all tools, by name.
    """
    yield from secret_problems(policies)
    declared = {secret.name: secret.hosts for secret in declared_secrets(policies)}
    for name, tool in tools.items():
        if isinstance(tool.function, Remote):
            continue  # what `[mcp]` declares is checked where it is read
        file = Path(tool.function.__code__.co_filename)
        shown = str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
        line = tool.function.__code__.co_firstlineno
        if tool.spec.isolation is not None:
            for message in _isolation(root, tool.spec.isolation, declared):
                yield Problem(shown, line, f"tool {name!r}: {message}")
        elif file.is_relative_to(root):
            for module, at in _imports(file):
                yield Problem(
                    shown,
                    at,
                    f"imports {module!r}, and tool {name!r} runs in the gateway's process, where it may not be used: "
                    "reach services through ctx.fetch or ctx.connect, with isolation=Isolation(hosts=…)",
                )


def _isolation(root: Path, isolation: Isolation, declared: Mapping[str, frozenset[str]]) -> Iterator[str]:
    for host in isolation.hosts:
        try:
            destination(host)
        except SandboxError as error:
            yield str(error)
    for secret in isolation.secrets:
        if secret not in declared:
            yield f"secret {secret!r} is not declared: add [secrets.{secret}] to policies/{FILE}"
        elif declared[secret] and not declared[secret] & set(isolation.hosts):
            yield f"secret {secret!r} goes to none of its hosts: they are {', '.join(sorted(declared[secret]))}"
    try:
        readable(root.resolve(), isolation)
    except SandboxError as error:
        yield str(error)


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Modules of `_REACHING` that a source imports, with their lines."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            known = {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & _REACHING
            if known:
                yield min(known), node.lineno
                break
