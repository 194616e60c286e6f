"""Arguments of tools as a policy sees them: which facts each has, and the facts of one call.

Invariant: the facts of a call have exactly the names and types that the schema declares, and are read from the values
the tool will get: a value that is not in its canonical form is refused, not parsed. Facts are scalars, sets of scalars
and an IP address that was parsed here, so no argument can smuggle an entity into Cedar.

An e-mail address has `<name>_domain` beside itself (a list of them `<name>_domains`); a web address has `_scheme`,
`_host`, `_port`, `_path`, and, once its host was looked up, `_address` and `_public` (every address of it is on the
public internet). Text with a declared pattern stands for something, so it has one spelling; free text is its own fact.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentops import parsers
from agentops.errors import PolicyError
from agentops.types import Json, ToolSpec

LONG = 2**63 - 1
CENTS = 2**53 - 1  # what every JSON reader keeps exactly
MAX_TEXT = 65_536  # characters of one argument
MAX_ITEMS = 1_000
MAX_ADDRESSES = 64  # of one host
_SPELLED = ("email", "domain", "url", "path")
_TYPES = {"string": "String", "integer": "Long", "boolean": "Bool"}
_URL = {
    "_address": "ipaddr",
    "_host": "String",
    "_path": "String",
    "_port": "Long",
    "_public": "Bool",
    "_scheme": "String",
}
_BESIDE: Mapping[tuple[str, str], Mapping[str, str]] = {  # by (format, Cedar type): facts beside the value itself
    ("email", "String"): {"_domain": "String"},
    ("email", "Set<String>"): {"_domains": "Set<String>"},
    ("url", "String"): _URL,
}


@dataclass(frozen=True, slots=True)
class Argument:
    """How one argument becomes facts."""

    cedar: str  # Cedar type; "" = it has no fact
    nullable: bool = False
    format: str = ""  # email | domain | url | path | cents | pattern
    root: str = ""  # of a path
    default: Json = None

    @property
    def beside(self) -> Mapping[str, str]:
        """Suffix -> Cedar type of the facts beside the value."""
        return _BESIDE.get((self.format, self.cedar), {})


def arguments_of(spec: ToolSpec) -> dict[str, Argument]:
    """The arguments of a tool, worked out once for all its calls."""
    definitions = spec.parameters.get("$defs", {})
    found: dict[str, Argument] = {}
    for name, schema in spec.parameters.get("properties", {}).items():
        cedar, nullable, format, root = _shape(schema, definitions)
        if format in ("", "pattern") and cedar == "String" and parsers.names_email(name):
            format = "email"
        found[name] = Argument(cedar, nullable, format, root, schema.get("default"))
    return found


def argument_types(spec: ToolSpec) -> dict[str, str]:
    """Facts of a tool's arguments: name (with `?` when it can be absent) -> Cedar type.

    Numbers with a fraction and objects have no fact: Cedar has neither.

    Raises:
        PolicyError: an argument's name cannot be a fact, or collides with a fact of another; a web address inside a
            list or an object, where nobody would look up its host.
    """
    properties = spec.parameters.get("properties", {})
    types: dict[str, str] = {}
    for name, argument in arguments_of(spec).items():
        if name.startswith("__") or name.endswith("?"):
            raise PolicyError(f"tool {spec.name!r}: argument {name!r} cannot be a policy fact: rename it")
        if (argument.format, argument.cedar) != ("url", "String") and _holds_url(properties[name], spec):
            raise PolicyError(
                f"tool {spec.name!r}: argument {name!r} holds a Url inside: make each an argument of its own"
            )
        if not argument.cedar:
            continue
        required = name in spec.parameters.get("required", ()) or "default" in properties[name]
        absent = "?" if argument.nullable or not required else ""
        types[name + absent] = argument.cedar
        for suffix, kind in argument.beside.items():
            if name + suffix in properties:
                raise PolicyError(
                    f"tool {spec.name!r}: argument {name + suffix!r} is the {suffix[1:]} fact of {name!r}: rename it"
                )
            types[name + suffix + absent] = kind
    return types


def argument_facts(
    arguments: Mapping[str, Argument], given: Mapping[str, Json], addresses: Mapping[str, Json]
) -> dict[str, Json]:
    """`context.args`: the facts of each argument that has a Cedar type, defaults filled in.

    Args:
        arguments: of the tool.
        given: canonical arguments of the call.
        addresses: by argument: the addresses that the host of a web address was found to have.

    Raises:
        PolicyError: an unknown argument, a value that does not have the declared type or is not in its canonical
            form, a host that was not found; names the argument only.
    """
    for name in given:
        if name not in arguments:
            raise PolicyError(f"argument {name[:40]!r} is not one of the tool's")
    facts: dict[str, Json] = {}
    for name, argument in arguments.items():
        value = given.get(name, argument.default)
        if not argument.cedar or value is None:
            continue
        facts[name] = _typed(name, argument.cedar, value)
        if argument.format == "url":
            facts |= _url_facts(name, facts[name], addresses.get(name))
        elif argument.format:
            for item in facts[name] if argument.cedar.startswith("Set<") else [facts[name]]:
                if _parsed(name, argument, item) != item:
                    raise PolicyError(f"argument {name!r} is not in its canonical form, which the tool would get")
        if argument.format == "email":
            if argument.cedar == "String":
                facts[f"{name}_domain"] = parsers.email_domain(facts[name])
            else:
                facts[f"{name}_domains"] = sorted({parsers.email_domain(item) for item in facts[name]})
    return facts


def spelled(arguments: Mapping[str, Argument], given: Mapping[str, Json]) -> dict[str, Json]:
    """`given` with each address, domain, web address and path in its canonical spelling; other values as they are.

    For arguments that did not come through a tool's signature: cases of decisions.toml, tools of other servers.

    Raises:
        PolicyError: a value that is ambiguous; names the argument only.
    """
    found = dict(given)
    for name, value in given.items():
        argument = arguments.get(name)
        if argument is None or argument.format not in _SPELLED:
            continue
        if isinstance(value, str):
            found[name] = _parsed(name, argument, value)
        elif isinstance(value, list):
            found[name] = [_parsed(name, argument, item) if isinstance(item, str) else item for item in value]
    return found


def urls(arguments: Mapping[str, Argument], given: Mapping[str, Json]) -> dict[str, parsers.Url]:
    """The web addresses among the arguments of a call, by name; what is none is left to `argument_facts` to refuse."""
    found: dict[str, parsers.Url] = {}
    for name, argument in arguments.items():
        value = given.get(name, argument.default)
        if argument.format == "url" and isinstance(value, str):
            try:
                found[name] = parsers.url(value, name)
            except PolicyError:
                continue
    return found


def _shape(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, bool, str, str]:
    """(Cedar type, whether null is allowed, format, root) of a JSON Schema; "" where it has none."""
    if "$ref" in schema:
        return _shape(definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1], {}), {})
    if "anyOf" in schema:
        shapes = [_shape(item, definitions) for item in schema["anyOf"] if item.get("type") != "null"]
        nullable = len(shapes) < len(schema["anyOf"])
        if len({cedar for cedar, *_ in shapes}) != 1:
            return "", nullable, "", ""
        cedar, _, format, root = shapes[0]
        return (cedar, nullable, format, root) if len(set(shapes)) == 1 else (cedar, nullable, "", "")
    kind = schema.get("type")
    if kind is None and isinstance(schema.get("const"), str):
        kind = "string"
    if kind == "array":
        item, _, format, root = _shape(schema.get("items", {}), definitions)
        return (f"Set<{item}>", False, format, root) if item in ("String", "Long") else ("", False, "", "")
    return _TYPES.get(str(kind), ""), False, _format(str(kind), schema), str(schema.get("x-root", ""))


def _format(kind: str, schema: Mapping[str, Any]) -> str:
    declared = schema.get("format")
    if kind == "integer":
        return "cents" if declared == "cents" else ""
    if kind != "string":
        return ""
    if declared == "path" and "x-root" in schema:
        return "path"
    if declared == "uri" and parsers.URL_MARK in schema:
        return "url"
    if declared in ("email", "hostname"):
        return "email" if declared == "email" else "domain"
    return "pattern" if "pattern" in schema else ""


def _holds_url(schema: Mapping[str, Any], spec: ToolSpec) -> bool:
    marker = json.dumps(parsers.URL_MARK)
    text = json.dumps(schema)
    return marker in text or ("$ref" in text and marker in json.dumps(spec.parameters.get("$defs", {})))


def _typed(name: str, kind: str, value: Json) -> Json:
    if kind == "Bool" and type(value) is bool:
        return value
    if kind == "Long" and type(value) is int and -LONG - 1 <= value <= LONG:
        return value
    if kind == "String" and type(value) is str and len(value) <= MAX_TEXT:
        return value
    if kind.startswith("Set<") and isinstance(value, list | tuple) and len(value) <= MAX_ITEMS:
        return [_typed(name, kind[4:-1], item) for item in value]
    raise PolicyError(f"argument {name!r} is not a {kind} within bounds")


def _parsed(name: str, argument: Argument, value: Json) -> Json:
    if argument.format == "email":
        return parsers.email(value, name)
    if argument.format == "domain":
        return parsers.domain(value, name)
    if argument.format == "url":
        return parsers.url(value, name).text
    if argument.format == "path":
        return parsers.file_path(value, argument.root, name)
    if argument.format == "cents":
        if abs(value) > CENTS:
            raise PolicyError(f"argument {name!r} is an amount of 2^53 or more")
        return value
    return parsers.identifier(value, name)


def _url_facts(name: str, value: str, addresses: Json) -> dict[str, Json]:
    found = parsers.url(value, name)
    if found.text != value:
        raise PolicyError(f"argument {name!r} is not in its canonical form, which the tool would get")
    known = [found.host] if found.literal else addresses
    if not isinstance(known, list | tuple) or not 0 < len(known) <= MAX_ADDRESSES:
        raise PolicyError(f"the host of {name!r} could not be looked up")
    return {
        f"{name}_address": {"__extn": {"fn": "ip", "arg": parsers.ip_address(known[0])}},
        f"{name}_host": found.host,
        f"{name}_path": found.path,
        f"{name}_port": found.port,
        f"{name}_public": all(parsers.public(address) for address in known),
        f"{name}_scheme": found.scheme,
    }
