"""The redactor: texts and JSON values in, the same with typed pseudonyms in place of what is personal or secret.

Invariant: `text` and `value` never raise on content and never return a covered value: what cannot be handled becomes
`<REDACTION_FAILED>`. Redacting twice changes nothing. Equal values of one tenant get equal pseudonyms, values of two
tenants never do (keyed HMAC), so joins inside a tenant survive and nobody without the key can test a guess.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import re2

from agentops.errors import PolicyError
from agentops.redact.recognisers import PLACEHOLDER, Finding, Recognisers, Rules
from agentops.redact.views import plain
from agentops.types import Json

FAILED = "<REDACTION_FAILED>"
ENGINE = 2  # raise when recognisers change what they find
CACHED_CHARS = 16_384
_PASSES = 8  # what stood next to a replaced value may only now stand alone ("4242…AKIA…")
_SECRET_KEY = re.compile(
    r"(?:.*[_\-.])?(?:password|passwd|pwd|passphrase|passcode|secret|api_?key|apikey|authorization|cookie|set_cookie"
    r"|private_?key|client_?secret|access_?token|refresh_?token|id_?token|session_?token|auth_?token|secret_?key"
    r"|access_?key|credentials?|cvv2?|cvc2?)"
)
_PHONE_KEY = re.compile(r"(?:.*_)?(?:phone|mobile|telephone|fax|phone_?number|mobile_?number)(?:_?\d)?")
# Whether a JSON text may have a key with such a meaning: one pass, before it is parsed.
_TELLING_KEY = (
    r"pass|pwd|secret|api_?key|authoriz|cookie|private_?key|token|auth_?|access_?key|credential|cv[vc]2?|phone"
    r"|mobile|fax"
)
DEFAULT_FIELDS = frozenset(
    {
        *("first_name", "last_name", "full_name", "given_name", "family_name", "middle_name", "surname", "maiden_name"),
        *("customer_name", "date_of_birth", "birth_date", "birthdate", "dob", "ssn", "passport_number", "tax_id"),
        *("street", "street_address", "address_line", "address_line1", "address_line2", "address1", "address2"),
    }
)


class Redactor:
    """Finds and replaces personal data and secrets.

    Args:
        key: at least 16 bytes; pseudonyms are HMAC-SHA256 under it.
        known_secrets: exact values that must never appear (at least 6 characters each), also in encoded forms.
        known_values: the tenants' own lists of personal values, such as names and addresses (at least 3 characters).
        rules: kinds, extra patterns, allowed domains.

    Raises:
        PolicyError: the key or a known value is too short (a short one would be found everywhere).
    """

    def __init__(
        self,
        key: bytes,
        known_secrets: Sequence[str] = (),
        *,
        known_values: Sequence[str] = (),
        rules: Rules = Rules(personal_fields=DEFAULT_FIELDS),
    ) -> None:
        if len(key) < 16:
            raise PolicyError(f"the redaction key has {len(key)} bytes, at least 16 are needed")
        for values, least, what in ((known_secrets, 6, "secret"), (known_values, 3, "value")):
            for value in values:
                if len(value.strip()) < least:
                    raise PolicyError(
                        f"a known {what} has {len(value.strip())} characters, at least {least} are needed"
                    )
        self._key = key
        self._rules = rules
        self._recognisers = Recognisers(rules, tuple(known_secrets), tuple(known_values))
        fields = "|".join(name.replace("_", "[_ -]?") for name in sorted(map(re2.escape, rules.personal_fields)))
        self._telling = re2.compile(rf"(?i)(?:(?:{_TELLING_KEY})[\w\-]*{'|' if fields else ''}{fields})\\*[\"']\s*:")
        # Tool schemas, prompts and results repeat from span to span.
        self._cached = lru_cache(maxsize=2048)(self._replaced)
        described = json.dumps(
            [
                sorted(rules.kinds),
                sorted(rules.allowed_domains),
                rules.patterns,
                rules.regions,
                sorted(rules.personal_fields),
            ]
        )
        self.version = f"{ENGINE}+{hashlib.sha256(described.encode()).hexdigest()[:8]}"

    def text(self, text: str, tenant: str = "") -> str:
        """`text` with every finding replaced. JSON texts stay valid JSON."""
        try:
            return self._text(text, tenant)
        except Exception:  # noqa: BLE001 - fail closed: whatever went wrong, the original must not get out
            return FAILED

    def value(self, value: Json, tenant: str = "") -> Json:
        """`value` with every text in it redacted, at any depth. Keys stay, unless a key itself has a finding."""
        try:
            return self._value(value, tenant)
        except Exception:  # noqa: BLE001 - fail closed (too deep, hostile objects)
            return FAILED

    def findings(self, text: str) -> list[Finding]:
        """What would be replaced in `text`, in order, not overlapping."""
        return self._recognisers.find(text)

    def pseudonym(self, kind: str, value: str, tenant: str = "") -> str:
        """The placeholder of one value, for example "<USER:1a2b3c4d>". One that is a placeholder already is kept."""
        if PLACEHOLDER.fullmatch(value):
            return value
        message = "\0".join((tenant, kind, value)).encode("utf-8", "replace")
        return f"<{kind}:{hmac.new(self._key, message, hashlib.sha256).hexdigest()[:8]}>"

    def _text(self, text: str, tenant: str) -> str:
        if len(text) < 4:
            return text
        return self._cached(text, tenant) if len(text) <= CACHED_CHARS else self._replaced(text, tenant)

    def _replaced(self, text: str, tenant: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be stored anyway
        if text.lstrip()[:1] in ("{", "["):
            clean = self._json(text, tenant)
            if clean is not None:
                return clean
        for _ in range(_PASSES):
            found = self._recognisers.find(text)
            if not found:
                return text
            pieces = []
            last = 0
            for finding in found:
                pieces += [text[last : finding.start], self.pseudonym(finding.kind, finding.value, tenant)]
                last = finding.end
            text = "".join([*pieces, text[last:]])
        return FAILED if self._recognisers.find(text) else text

    def _json(self, text: str, tenant: str) -> str | None:
        """A JSON text redacted value by value, so that it stays JSON; None when it is none."""
        # Without escapes in it, the text as it stands shows whether anything is there: most have nothing.
        if plain(text) and not self._telling.search(text.encode()) and not self._recognisers.any(text):
            return text
        repeated: list[str] = []

        def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
            found = dict(pairs)
            if len(found) < len(pairs):
                repeated.append("a key twice")  # parsing drops the first: the text must not keep it
            return found

        try:
            parsed = json.loads(text, object_pairs_hook=members)
        except (ValueError, RecursionError):
            return None
        clean = self._value(parsed, tenant)
        return (
            text if clean == parsed and not repeated else json.dumps(clean, ensure_ascii=False, separators=(",", ":"))
        )

    def _value(self, value: Json, tenant: str) -> Json:
        if isinstance(value, str):
            return self._text(value, tenant)
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            shown = str(value) if -(10**30) < value < 10**30 else ""
            return self.pseudonym(found[0].kind, found[0].value, tenant) if (found := self._digits(shown)) else value
        if isinstance(value, Mapping):
            return {
                self._text(key, tenant) if isinstance(key, str) else key: self._field(key, item, tenant)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, tenant) for item in value]
        return FAILED if isinstance(value, bytes | bytearray | memoryview) else self._text(str(value), tenant)

    def _digits(self, shown: str) -> list[Finding]:
        return self._recognisers.find(shown) if len(shown) >= 12 else []

    def _field(self, key: Json, item: Json, tenant: str) -> Json:
        """A member of an object: some keys say by themselves what the value is."""
        if not isinstance(key, str) or not isinstance(item, str | int) or isinstance(item, bool):
            return self._value(item, tenant)
        name, meaning = _field_name(key)
        shown = str(item)
        if not (meaning or name in self._rules.personal_fields) or not shown.strip() or PLACEHOLDER.fullmatch(shown):
            return self._value(item, tenant)
        if meaning == "SECRET" and "SECRET" in self._rules.kinds and len(shown) >= 3:
            return self.pseudonym("SECRET", shown, tenant)
        digits = re.sub(r"\D", "", shown)
        if meaning == "PHONE" and "PHONE" in self._rules.kinds and 7 <= len(digits) <= 15:
            return self.pseudonym("PHONE", digits, tenant)
        if name in self._rules.personal_fields:
            return self.pseudonym("PERSONAL", " ".join(shown.lower().split()), tenant)
        return self._value(item, tenant)


@lru_cache(maxsize=4096)
def _field_name(key: str) -> tuple[str, str]:
    """A key in one spelling (`firstName`, `First-Name` and `first_name` are one), and what it says its value is."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key[:200])
    name = re.sub(r"[\s\-]+", "_", spaced).lower()
    return name, "SECRET" if _SECRET_KEY.fullmatch(name) else "PHONE" if _PHONE_KEY.fullmatch(name) else ""
