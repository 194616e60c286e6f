"""The parser behind `language.parse`: lines of tokens become steps.

Invariant: it looks at each token a bounded number of times and raises nothing but PlanError. It evaluates nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentops import graph
from agentops.errors import PlanError
from agentops.plan import lexer, literals
from agentops.plan.lexer import Token
from agentops.types import Json, Plan, Ref, Step, ToolSpec

MAX_STEPS = 64
MAX_DEPTH = 8  # nesting of lists and objects in a value
RESERVED = ("say", "handoff", "also", "true", "false", "null")
SLOT = re.compile(r"\$([a-z_][a-z0-9_]*)")


def defined(lines: Sequence[tuple[int, list[Token]]]) -> dict[str, int]:
    """Line on which each named step is defined, to tell a forward reference from an unknown one."""
    found: dict[str, int] = {}
    for number, line in lines:
        start = True
        for token, following in zip(line, [*line[1:], None], strict=True):
            if start and token.kind == "name" and following is not None and following.text == "=":
                found.setdefault(token.text, number)
            start = token.text == "&" and token.kind == "mark"
    return found


@dataclass(slots=True)
class Cursor:
    """A read position in one line's tokens; never changed (not frozen: one is made per token)."""

    tokens: list[Token]
    number: int
    at: int = 0

    @property
    def token(self) -> Token:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        last = self.tokens[-1]
        return Token("end", "end of line", self.number, last.column + len(last.text))

    def ahead(self, count: int = 1) -> "Cursor":
        return Cursor(self.tokens, self.number, self.at + count)

    def expect(self, mark: str, why: str) -> "Cursor":
        if self.token.kind != "mark" or self.token.text != mark:
            raise lexer.error(self.token, f"expected {mark!r} {why}, found {self.token.shown}")
        return self.ahead()


class Parser:
    """Collects the stages of one plan, line by line."""

    def __init__(
        self, tools: Mapping[str, ToolSpec], defined: Mapping[str, int], slots: Mapping[str, Json] | None
    ) -> None:
        self._tools = tools
        self._slots = slots
        self._defined = defined
        self._steps: dict[str, Step] = {}  # of the parts before
        self._earlier: dict[str, Step] = {}  # of this part's lines before
        self._effects: list[str] = []  # ids of this part's earlier steps with an effect
        self._stages = self._parts = 0
        self._say: str | None = None
        self._handoff = ""
        self._line: list[Step] = []
        self._taken = set(defined)
        self._automatic = 0

    def line(self, number: int, tokens: list[Token]) -> None:
        cursor = Cursor(tokens, number)
        if self._say is not None or self._handoff:
            word = "handoff" if self._handoff else "say"
            raise lexer.error(cursor.token, f"nothing may follow the {word!r} line")
        word = cursor.token
        if word.kind == "name" and word.text in ("say", "handoff"):
            self._closing(cursor)
            return
        if word.kind == "name" and word.text == "also" and len(tokens) == 1:
            self._next_part(word)
            return
        self._line = []
        while True:
            cursor = self._step(cursor)
            if cursor.token.kind == "end":
                break
            cursor = cursor.expect("&", "between calls of one line")
        self._earlier.update((step.id, step) for step in self._line)
        self._effects += [step.id for step in self._line if self._tools[step.tool].effect != "read"]
        self._stages += 1

    def plan(self, source: str) -> Plan:
        """What the lines say; `text` is left to the caller."""
        if self._say is None and not self._handoff:
            known = "steps" if self._all() else "a plan that is empty"
            raise PlanError(
                f'{known} without an answer: the last line of a plan is say "…" (or handoff "…" instead of steps)'
            )
        return Plan(tuple(self._all().values()), self._say or "", source=source, handoff=self._handoff)

    def _all(self) -> dict[str, Step]:
        return {**self._steps, **self._earlier}

    def _next_part(self, word: Token) -> None:
        if not self._earlier:
            raise lexer.error(word, "also stands between two parts: there is no step before it")
        self._steps = self._all()
        self._earlier, self._effects = {}, []
        self._parts += 1

    def _closing(self, cursor: Cursor) -> None:
        word, text = cursor.token, cursor.ahead().token
        if self._parts and not self._earlier:
            raise lexer.error(word, "also stands between two parts: there is no step after it")
        if text.kind != "string":
            raise lexer.error(text, f'{word.text} needs a text in double quotes: {word.text} "…", found {text.shown}')
        end = cursor.ahead(2).token
        if end.kind != "end":
            raise lexer.error(end, f"expected the end of the line after {word.text}, found {end.shown}")
        value = self._filled(text)
        if word.text == "handoff":
            if self._all():
                raise lexer.error(word, "handoff takes the place of steps: a plan has either")
            if not value.strip():
                raise lexer.error(text, "handoff needs a summary for the person who takes over")
            self._handoff = value
            return
        try:
            holes = graph.holes(value)
        except ValueError as error:
            raise lexer.error(text, f"{error} (a literal brace is written {{{{ or }}}})") from None
        for hole in holes:
            if hole.step not in self._all():
                known = self._known_steps(self._all())
                raise lexer.error(text, f"say refers to {hole.step!r}, which is no step; {known}")
        self._say = value

    def _filled(self, token: Token) -> str:
        """The text of a closing line, its slots written out; their braces are literal."""
        text = lexer.string(token)
        if self._slots is None:
            return text
        return SLOT.sub(lambda match: literals.shown(self._slot(match[1], token)), text)

    def _slot(self, name: str, token: Token) -> Json:
        if self._slots is None:
            raise lexer.error(token, f"'${name}' is a slot: only playbooks have them, a plan holds values")
        if name not in self._slots:
            raise lexer.error(token, f"slot '${name}' has no value; slots: {lexer.listed(self._slots)}")
        return self._slots[name]

    def _slot_value(self, token: Token, depth: int) -> Json | Ref:
        """A slot as a value, within the language's bounds: its JSON is read as one value, at the slot's place."""
        value = self._slot(token.text[1:], token)
        if isinstance(value, Ref):  # a stand-in: only the playbook's form is being checked
            return value
        parts = [replace(part, line=token.line, column=token.column) for part in lexer.tokens(literals.write(value), 0)]
        return self._value(Cursor(parts, token.line), depth)[0]

    def _step(self, cursor: Cursor) -> Cursor:
        first = cursor.token
        if first.kind != "name":
            raise lexer.error(first, f"expected a call, name = tool(…), found {first.shown}")
        following = cursor.ahead().token
        named = following.kind == "mark" and following.text == "="
        if named:
            if first.text in RESERVED or "." in first.text or len(first.text) > 64:
                raise lexer.error(first, f"{first.text[:80]!r} cannot name a step: use [a-z][a-z0-9_]*, no keyword")
            if first.text in self._all() or any(step.id == first.text for step in self._line):
                raise lexer.error(first, f"{first.text!r} already names a step: every name is used once")
            cursor = cursor.ahead(2)
        if len(self._steps) + len(self._earlier) + len(self._line) >= MAX_STEPS:
            raise lexer.error(first, f"a plan has at most {MAX_STEPS} steps")
        word = cursor.token
        spec = self._tools.get(word.text) if word.kind == "name" else None
        if spec is None:
            known = lexer.listed(self._tools)
            raise lexer.error(word, f"{word.shown} is not a tool; tools: {known}")
        cursor = cursor.ahead().expect("(", f"after {spec.name!r}")
        given, cursor = self._arguments(cursor, spec)
        before = [*self._earlier] if spec.effect != "read" else self._effects
        needed = {*before, *graph.references(given)}
        after = tuple(name for name in self._earlier if name in needed)
        name = first.text if named else self._name()
        self._line.append(Step(name, spec.name, given, after, self._stages, self._parts))
        return cursor

    def _name(self) -> str:
        while True:
            self._automatic += 1
            name = f"s{self._automatic}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def _arguments(self, cursor: Cursor, spec: ToolSpec) -> tuple[dict[str, Any], Cursor]:
        properties = spec.parameters.get("properties", {})
        order = list(properties)
        given: dict[str, Any] = {}
        opened, keyword = cursor.token, False
        while not (cursor.token.kind == "mark" and cursor.token.text == ")"):
            if given:
                cursor = cursor.expect(",", "or ')' after an argument")
            at, following = cursor.token, cursor.ahead().token
            if at.kind == "name" and following.kind == "mark" and following.text == "=":
                name, keyword, cursor = at.text, True, cursor.ahead(2)
                if name not in properties:
                    raise lexer.error(at, f"{spec.name} has no argument {name!r}; arguments: {lexer.listed(order)}")
            elif keyword:
                raise lexer.error(at, "a positional argument cannot follow one given by name")
            elif len(given) >= len(order):
                raise lexer.error(at, f"{spec.name} takes {len(order)} argument(s): {lexer.listed(order)}")
            else:
                name = order[len(given)]
            if name in given:
                raise lexer.error(at, f"argument {name!r} is given twice")
            start = cursor.token
            given[name], cursor = self._value(cursor, 0)
            wrong = literals.mismatch(given[name], properties[name], spec.parameters)
            if wrong:
                raise lexer.error(start, f"argument {name!r} of {spec.name} {wrong}")
        missing = [name for name in spec.parameters.get("required", ()) if name not in given]
        if missing:
            raise lexer.error(opened, f"{spec.name} needs {lexer.listed(missing)}; arguments: {lexer.listed(order)}")
        return {name: given[name] for name in order if name in given}, cursor.ahead()

    def _value(self, cursor: Cursor, depth: int) -> tuple[Any, Cursor]:
        token = cursor.token
        if depth > MAX_DEPTH:
            raise lexer.error(token, f"values may be nested {MAX_DEPTH} deep at most")
        if token.kind == "string":
            return lexer.string(token), cursor.ahead()
        if token.kind == "number":
            return lexer.number(token), cursor.ahead()
        if token.kind == "name":
            return self._word(token), cursor.ahead()
        if token.kind == "slot":
            return self._slot_value(token, depth), cursor.ahead()
        if token.kind == "mark" and token.text == "[":
            return self._list(cursor.ahead(), depth)
        if token.kind == "mark" and token.text == "{":
            return self._object(cursor.ahead(), depth)
        raise lexer.error(token, f"expected a value, found {token.shown}")

    def _list(self, cursor: Cursor, depth: int) -> tuple[list[Any], Cursor]:
        items: list[Any] = []
        while not (cursor.token.kind == "mark" and cursor.token.text == "]"):
            if items:
                cursor = cursor.expect(",", "or ']' in a list")
            item, cursor = self._value(cursor, depth + 1)
            items.append(item)
        return items, cursor.ahead()

    def _object(self, cursor: Cursor, depth: int) -> tuple[dict[str, Any], Cursor]:
        items: dict[str, Any] = {}
        while not (cursor.token.kind == "mark" and cursor.token.text == "}"):
            if items:
                cursor = cursor.expect(",", "or '}' in an object")
            at = cursor.token
            if at.kind != "string":
                raise lexer.error(at, f"expected a key in double quotes, found {at.shown}")
            key = lexer.string(at)
            if key in items:
                raise lexer.error(at, f"key {key[:80]!r} is given twice")
            items[key], cursor = self._value(cursor.ahead().expect(":", "after a key"), depth + 1)
        return items, cursor.ahead()

    def _word(self, token: Token) -> Json | Ref:
        if token.text in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[token.text]
        try:
            found = graph.reference(token.text)
        except ValueError as error:
            raise lexer.error(token, str(error)) from None
        if found.step in self._earlier:
            return found
        if any(step.id == found.step for step in self._line):
            raise lexer.error(
                token, f"{found.step!r} runs at the same time: move the step that uses it to a later line"
            )
        if found.step in self._steps:
            raise lexer.error(token, f"{found.step!r} belongs to another part: nothing waits across also")
        if self._defined.get(found.step, 0) >= token.line:
            line = self._defined[found.step]
            raise lexer.error(token, f"{found.step!r} is defined on line {line}: a reference goes to an earlier line")
        raise lexer.error(
            token,
            f"{found.step!r} is no earlier step; {self._known_steps(self._earlier)}; a text goes in double quotes",
        )

    def _known_steps(self, steps: Mapping[str, Step]) -> str:
        return f"steps: {lexer.listed(steps)}" if steps else "there is no earlier step"
