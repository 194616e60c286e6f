"""Redaction: what must go goes in every disguise, what must stay stays, and nothing ever gets out by an error."""

import base64
import json
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.errors import PolicyError
from agentops.redact import FAILED, Redactor, Rules
from agentops.redact.redactor import DEFAULT_FIELDS

KEY = b"a key of thirty-two bytes exactly"
REDACTOR = Redactor(KEY, ["s3cr3t-of-the-deployment"], known_values=["Ingrid Bergström", "Lindenallee 12"])

# kind, a value that must never survive
PERSONAL = [
    ("EMAIL", "dana.k@example.org"),
    ("EMAIL", "o'brien+tag@sub.example.co.uk"),
    ("EMAIL", "operator@host.internal"),
    ("EMAIL", "jörg@müller.example"),
    ("EMAIL", "root@[10.0.0.1]"),
    ("CARD", "4242 4242 4242 4242"),
    ("CARD", "4242424242424242"),
    ("CARD", "3782-822463-10005"),
    ("CARD", "5555 5555 5555 4444"),
    ("CARD", "6011000990139424"),
    ("PHONE", "+1 555 123 4567"),
    ("PHONE", "+49 (0)30 901820"),
    ("PHONE", "+44 20 7946 0958"),
    ("PHONE", "(555) 123-4567"),
    ("PHONE", "020 7946 0018"),
    ("PHONE", "0049 30 901820"),
    ("IBAN", "DE89 3704 0044 0532 0130 00"),
    ("IBAN", "GB82WEST12345698765432"),
    ("SSN", "536-22-8726"),
    ("JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"),
    ("KEY", "AKIAIOSFODNN7EXAMPLE"),
    ("KEY", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    ("KEY", "sk-ant-api03-abcdefghijklmnopqrstuvwx"),
    ("KEY", "AIzaSyA1234567890abcdefghijklmnopqrstuv"),
    ("KEY", "xoxb-123456789012-abcdefABCDEF"),
    ("KEY", "hf_abcdefghijklmnopqrstuvwxyzABCD"),
    ("SECRET", "s3cr3t-of-the-deployment"),
    ("KNOWN", "Ingrid Bergström"),
    ("KNOWN", "Lindenallee 12"),
]


def full_width(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


DISGUISES = {
    "plain": lambda v: v,
    "url": lambda v: quote(v, safe=""),
    "url twice": lambda v: quote(quote(v, safe=""), safe=""),
    "url every byte": lambda v: "".join(f"%{byte:02X}" for byte in v.encode()),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 url": lambda v: base64.urlsafe_b64encode(f"{v}?>".encode()).decode().rstrip("="),
    "base64 in text": lambda v: base64.b64encode(f"the customer is {v} ok".encode()).decode(),
    "base64 twice": lambda v: base64.b64encode(base64.b64encode(v.encode())).decode(),
    "hex": lambda v: v.encode().hex(),
    "json": lambda v: json.dumps({"note": f"about {v}"}),
    "json in json": lambda v: json.dumps({"body": json.dumps({"note": [v]})}),
    "unicode escapes": lambda v: "".join(f"\\u{ord(c):04x}" for c in v),
    "html": lambda v: "".join(f"&#{ord(c)};" for c in v),
    "zero width": lambda v: "\u200b".join(v),
    "soft hyphen": lambda v: v[:3] + "\u00ad" + v[3:],
    "full width": full_width,
    "full width and zero width": lambda v: "\u2060".join(full_width(v)),
}


def survives(value: str, redacted: str) -> bool:
    """Whether a reader who undoes encodings finds the value, or most of it, in the text."""
    seen = {redacted, redacted.replace("\\/", "/")}
    forms = {
        value,
        value.lower(),
        quote(value, safe=""),
        base64.b64encode(value.encode()).decode().rstrip("="),
        value.encode().hex(),
    }
    compact = "".join(c for c in value if c.isalnum())
    return any(form in text for form in forms for text in seen) or (
        len(compact) > 9 and compact in redacted.replace(" ", "")
    )


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize(("kind", "value"), PERSONAL)
def test_personal_values_do_not_survive_any_disguise(kind: str, value: str, disguise: str) -> None:
    if disguise == "full width" and not value.isascii():
        pytest.skip("only ASCII has full-width forms")
    hidden = DISGUISES[disguise](value)
    # An encoded run has no word boundary inside; a reader meets it beside other text.
    text = f"order W1042: {hidden} please"
    clean = REDACTOR.text(text, "tenant")
    assert f"<{kind}:" in clean, clean
    assert not survives(value, clean)
    assert hidden not in clean
    assert clean.startswith("order W1042: ")
    assert clean.endswith(" please")


@pytest.mark.parametrize(
    ("text", "gone", "stays"),
    [
        ("password=hunter2 user=dana", "hunter2", "user=dana"),
        ('{"password": "hunter2", "n": 1}', "hunter2", '"n":1'),
        ("api_key: 'abc def ghi'", "abc def ghi", "api_key"),
        ("my password is hunter2!", "hunter2", "my password is"),
        ("DB_PASSWORD=p%40ss%20w0rd next", "p%40ss%20w0rd", "next"),
        ("Authorization: Bearer abc.def-ghi_jkl1234567", "abc.def-ghi_jkl1234567", "Bearer"),
        ("curl https://bob:hunter2@host.example/x", "hunter2", "/x"),
        ("redis://:hunter2@10.0.0.1:6379/0", "hunter2", "@10.0.0.1:6379/0"),
        ("card 4242424242424242, cvv 123", "123", "cvv"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----\ntail", "MIIEow", "tail"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIEow\\nabc and the rest is cut", "MIIEow", ""),
        ("I'm Dana, my order is late", "Dana", "my order is late"),
        ("Hello, my name is mia li and I need help", "mia li", "and I need help"),
        ("MY NAME IS TOBIAS. WRONG STREET", "TOBIAS", ". WRONG STREET"),
        ("My name is J. R. Hartley. Set it to SO-10023", "Hartley", ". Set it to SO-10023"),
        ("Dear Mrs. van der Berg, thanks", "Berg", "thanks"),
        ("It is broken.\nKind regards,\nÉlodie Marchand", "Élodie Marchand", "regards"),
        ("Dana wrote from dana.k@example.org", "Dana", "wrote from"),
        ('{"first_name": "Mia", "lastName": "Li", "qty": 2}', "Mia", '"qty":2'),
        ('{"phone": "5551234", "sku": "5551234"}', '"phone":"5551234"', '"sku":"5551234"'),
        ('{"card": 4242424242424242}', "4242424242424242", "card"),
        ('{"dana@example.org": 1}', "dana@example.org", ":1}"),
        ('{"a": "dana@example.org", "a": "x"}', "dana@example.org", "x"),
        ("please call me at 5551234567 today", "5551234567", "today"),
        ("escaped\\ndana@example.org", "dana@example.org", "escaped\\n"),
    ],
)  # fmt: skip
def test_in_context(text: str, gone: str, stays: str) -> None:
    clean = REDACTOR.text(text)
    assert gone not in clean, clean
    assert stays in clean, clean


@pytest.mark.parametrize(
    "text",
    [
        "Order W1042 arrived broken on 2024-05-15T10:00:00Z, total 45.99, refund R-9",
        '{"order_id": "W1042", "total_cents": 4599, "created": 1715767200000, "ns": 1715767200000000000}',
        "tracking 1Z999AA10123456784, SKU 4006381333931, invoice 2024-000123456",
        "from 2024-05-15 to 2024-05-20, 192.168.10.1, version 3.11.7, 10:45-12:30",
        "credit_card_7815826 certificate_4856383 user mia_li_3668 reservation 4OG6T3",
        "traceparent 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "550e8400-e29b-41d4-a716-446655440000",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "agentops_project.tools.orders/get_order and max_tokens=256 token_count: 1200",
        "my password: please reset it, the token is missing",
        "My PIN is locked, my last name has changed, I AM MISSING CASH, HELLO LINDENHOF,",
        "I'm Sorry to hear that. This is Urgent. Hi there! Thank you, Support.",
        "@tool decorators, 50% off & more, C:\\new\\table, a@b",
        '{"type":"function","function":{"name":"get_order","parameters":{"type":"object"}}}',
        "4242 4242 4242 4243 is no card",
        "the packaging was far too thin; SO45658 has suffered for it",
        "risk-management-framework-documentation-2024, a task-force-for-the-long-run",
        "DE00 3704 0044 0532 0130 00 is no account",
    ],
)
def test_structure_survives(text: str) -> None:
    assert REDACTOR.text(text) == text
    assert REDACTOR.findings(text) == []


def test_pseudonyms_are_stable_in_a_tenant_and_differ_between_tenants() -> None:
    first = REDACTOR.text("write to Dana.K@Example.org", "a")
    assert first == REDACTOR.text("write to dana.k@example.org", "a")
    assert first == REDACTOR.text("write to dana.k%40example.org", "a")
    assert first != REDACTOR.text("write to dana.k@example.org", "b")
    assert first != Redactor(b"another key of enough bytes").text("write to dana.k@example.org", "a")
    assert REDACTOR.text("4242-4242-4242-4242", "a") == REDACTOR.text("4242424242424242", "a")
    user = REDACTOR.pseudonym("USER", "u-17", "a")
    assert REDACTOR.pseudonym("USER", user, "a") == user


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
MIXED = st.lists(
    st.sampled_from(
        [value for _, value in PERSONAL]
        + [
            "password=",
            "my name is ",
            "I'm Dana",
            "\\n",
            "\\u0040",
            "%40",
            "&#64;",
            '"',
            "{",
            "<EMAIL:",
            " ",
            "\u200b",
            "=",
        ]
    )
    | st.text(max_size=6),
    max_size=8,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(MIXED)
def test_redacting_twice_changes_nothing_and_finds_nothing(text: str) -> None:
    clean = REDACTOR.text(text, "t")
    assert clean != FAILED or text == FAILED
    assert REDACTOR.text(clean, "t") == clean


@settings(max_examples=200, deadline=None)
@given(JSON, st.sampled_from([value for _, value in PERSONAL]))
def test_values_keep_their_shape_and_lose_the_planted_value(value: object, planted: str) -> None:
    clean = REDACTOR.value({"keep": value, "planted": [planted, {"deep": f"x {planted} y"}]}, "t")
    assert isinstance(clean, dict)
    assert not survives(planted, json.dumps(clean["planted"], ensure_ascii=False))
    assert clean["planted"][1]["deep"].startswith("x ")

    def same(a: object, b: object) -> bool:
        if isinstance(a, dict) and isinstance(b, dict):
            return len(a) >= len(b) and all(key not in b or same(a[key], b[key]) for key in a)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(same, a, b))
        return isinstance(b, str) if isinstance(a, str | int) and not isinstance(a, bool) and a != b else a == b

    assert same(value, clean["keep"])


@settings(max_examples=200, deadline=None)
@given(st.text() | MIXED)
def test_findings_are_ordered_and_inside_the_text(text: str) -> None:
    last = 0
    for finding in REDACTOR.findings(text):
        assert last <= finding.start < finding.end <= len(text)
        last = finding.end


def test_json_texts_stay_json() -> None:
    text = json.dumps({"a": [{"email": "dana@example.org", "n": 1.5}], "b": 'line\nbreak "quoted" I\'m Dana'})
    clean = json.loads(REDACTOR.text(text))
    assert clean["a"][0]["n"] == 1.5
    assert "Dana" not in clean["b"]
    assert "line\nbreak" in clean["b"]


def test_hostile_values_fail_closed() -> None:
    deep: object = "dana@example.org"
    for _ in range(100_000):
        deep = [deep]
    assert REDACTOR.value(deep) == FAILED
    assert REDACTOR.text("[" * 100_000 + '"dana@example.org"').endswith('"')
    assert "dana@" not in REDACTOR.text("[" * 50_000 + '"dana@example.org"')

    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("dana@example.org")

    assert REDACTOR.value({"x": Hostile()}) == FAILED
    assert REDACTOR.value(b"dana@example.org") == FAILED
    assert (
        REDACTOR.text("half \ud83d a pair, dana@example.org") == f"half ? a pair, {REDACTOR.text('dana@example.org')}"
    )


@pytest.mark.parametrize(
    "text",
    ["4242 4242\n4242 4242", "4242 4242 4242 \r\n 4242", "42424242\\n42424242", "12345678\n4242 4242\n4242 4242"],
)
def test_a_card_over_a_line_break(text: str) -> None:
    assert "4242" not in REDACTOR.text(f"my card: {text}, thanks")
    assert REDACTOR.text("4242\n4242\n4242\n4242") == "4242\n4242\n4242\n4242", "a column of numbers"


@pytest.mark.parametrize(
    "unit",
    ["1 ", "4 ", "4242 ", "a@", "@", "%40", "\\u0040", "&#64;", "+49 ", "password=", "eyJ", "-----BEGIN A-----", "Aa0",
     "{[", "GB82 ", "a.", "://", "I'm A", "<EMAIL:", "\u200b", "\uff10", "(1", "0 ", "dear A. ",
     "http://a:bc@d ", "dana@c.de ", "<EMAIL:00000000> ", "Dana ", '{"a":"', "Mr. ",
     "GB82 WEST 1234 5698 7654 98 ", "4242\n"],
)  # fmt: skip
@pytest.mark.parametrize("first", ["", "é"])  # RE2 handles ASCII and other texts on different paths
def test_time_is_linear_in_hostile_input(first: str, unit: str) -> None:
    def cost(size: int) -> float:
        text = (first + unit * size)[:size]
        start = time.process_time()
        REDACTOR.findings(text)
        return time.process_time() - start

    cost(2_000)
    small = min(cost(10_000) for _ in range(2))
    large = min(cost(80_000) for _ in range(2))
    assert large < 0.2 + 8 * 4 * small, (small, large)


def test_a_known_value_or_key_that_is_too_short_is_refused() -> None:
    with pytest.raises(PolicyError, match="at least 16"):
        Redactor(b"short")
    with pytest.raises(PolicyError, match="at least 6") as caught:
        Redactor(KEY, ["abc12"])
    assert "abc12" not in str(caught.value)
    with pytest.raises(PolicyError, match="at least 3"):
        Redactor(KEY, known_values=["Al"])


def test_rules_switch_kinds_and_add_patterns() -> None:
    rules = Rules(
        kinds=frozenset({"EMAIL"}),
        allowed_domains=frozenset({"shop.example"}),
        patterns=(("CUSTOMER_NO", r"\bKD-(?P<v>[0-9]{8})\b"),),
        personal_fields=DEFAULT_FIELDS,
    )
    redactor = Redactor(KEY, rules=rules)
    clean = redactor.text("KD-12345678 4242424242424242 help@mail.shop.example dana@notshop.example I'm Dana")
    assert clean.startswith("KD-<CUSTOMER_NO:")
    assert "4242424242424242 help@mail.shop.example <EMAIL:" in clean
    assert clean.endswith("I'm Dana")
    assert redactor.version != REDACTOR.version


@pytest.mark.data
def test_recorded_conversations_keep_their_ids_and_lose_their_people(data_dir: Path) -> None:
    episodes = json.loads((data_dir / "tau_airline" / "gpt-4o-airline.json").read_text())
    texts = [turn["content"] for episode in episodes[:60] for turn in episode["traj"] if turn.get("content")]
    kinds = {finding.kind for text in texts for finding in REDACTOR.findings(text)}
    assert kinds <= {"EMAIL", "NAME"}, "flights, dates, prices and ids are no phone numbers, cards or secrets"
    clean = "\n".join(REDACTOR.text(text) for text in texts)
    assert "@example.com" not in clean
    assert '"first_name":"<PERSONAL:' in clean
    for kept in ("mia_li_3668", "credit_card_", "reservation_id", "2024-05-"):
        assert clean.count(kept) == "\n".join(texts).count(kept)
