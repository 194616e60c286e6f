"""@tool: a typed async function becomes a Tool with a JSON Schema, a side-effect class and a digest.

Invariant: what the model sees (`spec.parameters`) and what validates a call (`arguments`) come from one pydantic model
built from the function's signature, so they cannot differ. This module runs no tool.
"""

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentops.act.values import NAMED_EMAIL
from agentops.errors import SandboxError, ToolError
from agentops.graph import Clock
from agentops.parsers import names_email
from agentops.types import CacheRule, Effect, Isolation, Json, Labels, Run, Tool, ToolSpec

if TYPE_CHECKING:
    from socket import socket

    from agentops.act.sandbox.client import Client as Broker
    from agentops.act.sandbox.client import Reply

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """What a tool gets beside its arguments."""

    run: Run
    world: Any  # what the project's world module opened
    clock: Clock
    call_id: str
    idempotency_key: str  # the same for every retry of one intended effect
    pins: Mapping[str, str] = field(default_factory=dict)  # "host:port" -> the address that was decided on
    broker: "Broker | None" = None  # only in a process of the tool's own

    async def fetch(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"", secret: str = ""
    ) -> "Reply":
        """One HTTP request to a host of the tool's Isolation. Redirects come back as they are.

        Args:
            method: GET, HEAD, POST, PUT, PATCH or DELETE.
            url: http or https, in its canonical spelling.
            headers: printable ASCII.
            body: at most 512 kB.
            secret: name of the secret to send along, which the tool itself does not see.

        Raises:
            SandboxError: it is not allowed, or the answer is compressed or larger than 1 MiB.
            ConnectionError: no answer.
        """
        return await self._broker().fetch(method, url, headers or {}, body, secret)

    async def connect(self, host: str, port: int) -> "socket":
        """A connected stream to a host of the tool's Isolation, which ends with the call.

        Raises:
            SandboxError: it is not allowed.
            ConnectionError: nobody answers there.
        """
        return await self._broker().connect(host, port)

    async def secret(self, name: str) -> str:
        """A secret's value, for protocols that `fetch` does not speak.

        Raises:
            SandboxError: the tool's Isolation does not name it, or it is not declared readable.
        """
        return await self._broker().secret(name)

    def open(self, path: str) -> BinaryIO:
        """A file beneath a folder of the tool's Isolation, to read; `path` is relative to the project's root.

        Raises:
            SandboxError: it is not beneath one of them.
            ToolError: there is no such file, it cannot be opened, or a link leads to it.
        """
        return self._broker().open(path)

    def _broker(self) -> "Broker":
        if self.broker is None:
            raise SandboxError(
                "no broker: only a tool with isolation=Isolation(…) reaches outside, through the gateway"
            )
        return self.broker


@dataclass(frozen=True, slots=True)
class Marked:
    """A part of a tool's result with labels of its own: `{"subject": Marked(text, Labels("untrusted"))}`.

    They only add to the tool's declared labels, which hold for the rest of the result.
    """

    value: Json
    labels: Labels


class Remote:
    """A tool's function that another program carries out: it has a schema, and a process, of its own."""

    def arguments(self, given: Mapping[str, Json]) -> dict[str, Json]:
        """The canonical arguments.

        Raises:
            ToolError: `given` does not fit.
        """
        raise NotImplementedError

    async def __call__(self, ctx: Context, **arguments: Any) -> Json:
        raise NotImplementedError


def tool(
    *,
    effect: Effect,
    scopes: set[str] | frozenset[str],
    timeout_s: float,
    cache: CacheRule | None = None,
    invalidates: tuple[str, ...] = (),
    idempotent: bool = False,
    amount: str = "",
    labels: Labels = Labels(),
    reads: tuple[str, ...] = (),
    declassifies: bool = False,
    isolation: Isolation | None = None,
    pack: str = "",
) -> Callable[[Callable[..., Any]], Tool]:
    """Declare a tool: `async def name(ctx: Context, **typed arguments) -> Json`. The docstring is the description.

    Args:
        effect: the side-effect class the policies decide on.
        scopes: all of these must be in the caller's effective scopes.
        timeout_s: deadline of one call, in seconds.
        cache: how long a result may be reused and which tags make it stale; only for effect "read".
        invalidates: tag templates over the arguments (`order:{order_id}`) that a successful call makes stale.
        idempotent: the same idempotency key never does the effect twice; reads always are.
        amount: for effect "money", the integer argument in minor units.
        labels: information-flow labels of every result.
        reads: tag templates of stored values that a result may hold: labels they were written under come back.
        declassifies: the result has `labels` alone, whatever labels the arguments had. For a read whose result is
            checked so narrowly that nobody can smuggle words through it. Policies decide who may use it, and every use
            that drops a label is recorded.
        isolation: that it runs in a process of its own; effect "exec" must.
        pack: owner folder; default: taken from the module, `agentops_project.tools.<pack>`.

    Raises:
        ValueError: the declaration contradicts itself; names the function and the rule.
    """

    def wrap(function: Callable[..., Any]) -> Tool:
        name = function.__name__
        if not _NAME.fullmatch(name):
            raise ValueError(f"tool name {name!r}: use [a-z][a-z0-9_]*, at most 64 characters")
        if not inspect.iscoroutinefunction(function):
            raise ValueError(f"tool {name!r} must be `async def`: a blocking tool would stop every other call")
        if not inspect.getdoc(function):
            raise ValueError(f"tool {name!r} needs a docstring: the model chooses tools by it")
        if effect != "read" and cache is not None:
            raise ValueError(f"tool {name!r} has effect {effect!r}: only reads may be cached")
        if cache is not None and cache.shared and labels.confidentiality in ("personal", "secret"):
            raise ValueError(f"tool {name!r} returns {labels.confidentiality} data: its cache cannot be shared")
        if effect == "exec" and (isolation is None or not isolation.fresh or isolation.least == "none"):
            raise ValueError(
                f"tool {name!r} runs code: declare isolation=Isolation(fresh=True) with least not 'none', so that "
                "each call gets a confined process of its own"
            )
        if timeout_s <= 0:
            raise ValueError(f"tool {name!r}: timeout_s = {timeout_s!r} must be above 0")
        model = _model(name, function)
        if effect == "money" and amount not in model.model_fields:
            raise ValueError(f"tool {name!r} moves money: amount= must name its integer argument, got {amount!r}")
        if declassifies and effect != "read":
            raise ValueError(f"tool {name!r} has effect {effect!r}: only a read may declassify")
        for template in (*invalidates, *reads, *(cache.tags if cache else ())):
            for hole in re.findall(r"\{(\w+)\}", template):
                if hole not in model.model_fields:
                    raise ValueError(f"tool {name!r}: tag {template!r} names {hole!r}, which is not an argument")
        spec = ToolSpec(
            name=name,
            pack=pack or _pack(function),
            description=inspect.cleandoc(function.__doc__ or ""),
            parameters=_schema(model),
            effect=effect,
            scopes=frozenset(scopes),
            timeout_s=timeout_s,
            cache=cache,
            invalidates=invalidates,
            idempotent=idempotent or effect == "read",
            amount_arg=amount,
            labels=labels,
            reads=reads,
            declassifies=declassifies,
            isolation=isolation,
        )
        return Tool(digested(spec, _source(function)), function)

    return wrap


def arguments(tool: Tool, given: Mapping[str, Json]) -> dict[str, Json]:
    """`given` validated strictly against the tool's signature and completed with defaults: the canonical arguments.

    Values of the types in `agentops.act.values` arrive in their one spelling: the policies decide on the very values
    that the tool gets.

    Raises:
        ToolError: unknown, missing or ill-typed arguments; every one is named, values are not repeated.
    """
    if isinstance(tool.function, Remote):
        return tool.function.arguments(given)
    try:
        return _model(tool.spec.name, tool.function).model_validate(dict(given)).model_dump(mode="json")
    except ValidationError as error:
        parts = [
            f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        raise ToolError(f"{tool.spec.name}: {'; '.join(parts)}") from None


@functools.lru_cache(maxsize=1024)
def _model(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].name != "ctx":
        raise ValueError(f"tool {name!r}: the first parameter must be `ctx`")
    fields: dict[str, Any] = {}
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"tool {name!r}: *{parameter.name} is not allowed, name every argument")
        if parameter.annotation is inspect.Parameter.empty:
            raise ValueError(f"tool {name!r}: argument {parameter.name!r} needs a type")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        annotation = parameter.annotation
        if names_email(parameter.name):  # the policies take it for one by its name: so does the tool
            annotation = Annotated[annotation, NAMED_EMAIL]
        fields[parameter.name] = (annotation, default)
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, validate_default=True)
    return create_model(name, __config__=config, **fields)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.pop("title", None)
    for one in schema.get("properties", {}).values():
        one.pop("title", None)
    return schema


def _pack(function: Callable[..., Any]) -> str:
    parts = function.__module__.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "tools" else parts[-1]


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except OSError:  # defined in an interactive session: the compiled code stands for the source
        return function.__code__.co_code.hex()


def digested(spec: ToolSpec, source: str) -> ToolSpec:
    """`spec` with the digest of all its fields and of `source`, what carries it out."""
    content = {
        "name": spec.name,
        "pack": spec.pack,
        "description": spec.description,
        "parameters": spec.parameters,
        "effect": spec.effect,
        "scopes": sorted(spec.scopes),
        "timeout_s": spec.timeout_s,
        "cache": [spec.cache.ttl_s, spec.cache.shared, *spec.cache.tags] if spec.cache else None,
        "invalidates": spec.invalidates,
        "idempotent": spec.idempotent,
        "amount_arg": spec.amount_arg,
        "labels": [spec.labels.integrity, spec.labels.confidentiality],
        "reads": spec.reads,
        "declassifies": spec.declassifies,
        "isolation": asdict(spec.isolation) if spec.isolation else None,
        "source": source,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return replace(spec, digest=f"sha256:{digest}")
