"""Domains, addresses, identifiers and paths: one spelling, a fixed point, or a refusal."""

import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentops.errors import PolicyError
from agentops.parsers import domain, email, file_path, identifier, root_path, url


@pytest.mark.parametrize(
    ("given", "canonical"),
    [("example.com", "example.com"), ("Mail.Example.COM.", "mail.example.com"), ("a-b.co", "a-b.co")],
)
def test_domains(given: str, canonical: str) -> None:
    assert domain(given) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "com",
        "localhost",
        "example..com",
        ".example.com",
        "example.com..",
        "-a.com",
        "a-.com",
        "a_b.com",
        "a b.com",
        "xn--exmple-4nf.com",
        "a.xn--p1ai",
        "ex\u0430mple.com",
        "example\uff0ecom",
        "exa\u200bmple.com",
        "127.0.0.1",
        "1.2",
        "a.c0m",
        "example.com\n",
        "example.com\x00",
        "a@b.com",
        "example.com:80",
        "a" * 64 + ".com",
        "a." * 127 + "com",
    ],
)
def test_what_is_no_plain_domain(text: str) -> None:
    with pytest.raises(PolicyError, match="plain domain name"):
        domain(text)


def test_an_address_keeps_its_local_part() -> None:
    assert email("Mara.Brandt+x@Mail.Example.COM") == "Mara.Brandt+x@mail.example.com"


@pytest.mark.parametrize(
    "text",
    [
        "a@evil.test@corp.example",
        "a@corp.example\r\nBcc: b@evil.test",
        "a@corp.example\n",
        "a%0d%0a@c.example\r",
        "\u0430dmin@corp.example",
        "a@c\u043erp.example",
        "a@xn--crp-una.example",
        "a\u200b@corp.example",
        "a\u202e@corp.example",
        "a@corp.example\x00.evil.test",
        "a\ud800@corp.example",
        "a＠corp.example",
        "<a@corp.example>",
        "a@corp.example,b@evil.test",
        "a@corp.example.",
        "a@corp",
        "@corp.example",
        "a@",
        "a b@corp.example",
        '"a@evil.test"@corp.example',
        "a@[127.0.0.1]",
    ],
)
def test_what_is_no_plain_address(text: str) -> None:
    with pytest.raises(PolicyError, match="plain e-mail address") as caught:
        email(text)
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("text", ["DOC-300001", "SO 1", "", "Zürich", "東京", "אבג", "e\u0301".replace("e\u0301", "é")])
def test_plain_identifiers(text: str) -> None:
    assert identifier(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "DOC-\uff13\uff10",
        "a\u200b",
        "a\u200d",
        "\ufeffa",
        "a\u202eb",
        "\u2066a",
        "a\x00",
        "a\n",
        "a\x1b[0m",
        "\ud800",
        "e\u0301",
        "ﬁ",
        "\u00adx",
        "\ue000",
        "a\u2028b",
        "K\u212a",
        "x\u00a0y",
        "\u115f".join("ab") + "\u200e",
        "tag\U000e0041",
    ],
)
def test_invisible_or_look_alike_identifiers(text: str) -> None:
    with pytest.raises(PolicyError, match="invisible or look-alike"):
        identifier(text)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("/workspace", "/workspace"),
        ("/workspace/", "/workspace"),
        ("/workspace/reports/q1.txt", "/workspace/reports/q1.txt"),
        ("/workspace//reports/./q1.txt/", "/workspace/reports/q1.txt"),
        ("/workspace/.hidden/..name/a..b", "/workspace/.hidden/..name/a..b"),
        ("/workspace/Zürich 2026.txt", "/workspace/Zürich 2026.txt"),
        ("/workspace/100%.txt", "/workspace/100%.txt"),
    ],
)
def test_paths(given: str, canonical: str) -> None:
    assert file_path(given, "/workspace") == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "reports/q1.txt",
        "/workspace2/x",
        "/workspaces",
        "/etc/passwd",
        "/Workspace/x",
        "//workspace/x",
        "/./workspace/x",
        "/workspace/../etc/shadow",
        "/workspace/..",
        "/workspace/reports/../../etc/shadow",
        "/workspace/a/..",
        "/workspace/.../x",
        "/workspace/%2e%2e/etc",
        "/workspace/%2E./x",
        "/workspace/..%2fetc",
        "/workspace/a%5cb",
        "/workspace/a%00",
        "/workspace\\..\\etc",
        "/workspace/a\\b",
        "/workspace/..\\x",
        "C:\\workspace",
        "\\\\host\\share",
        "/workspace/a\x00.txt",
        "/workspace/a\n",
        "/workspace/a\r\n",
        "/workspace/\x1b[2J",
        "/workspace/\x7f",
        "/workspace/~root/x",
        "/workspace/~",
        "~/workspace/x",
        "/workspace/a.",
        "/workspace/a /b",
        "/workspace/ a",
        "/workspace/.. /x",
        "/workspace/\uff0e\uff0e/etc",
        "/workspace/\u2025/etc",
        "/workspace/a\uff0fb",
        "/workspace/a\u200b",
        "/workspace/\u202egpj.exe",
        "/workspace/e\u0301.txt",
        "/workspace/\u0301x",
        "/workspace/\ud800",
        "/workspace/\ufeffx",
        "file:///workspace/x",
        "/workspace/" + "a" * 256,
        "/workspace" + "/a" * 2100,
        "/workspace/" + "é" * 128,
    ],
)
def test_paths_that_leave_or_mislead(text: str) -> None:
    with pytest.raises(PolicyError, match="'path'") as caught:
        file_path(text, "/workspace")
    assert "shadow" not in str(caught.value)


def test_roots() -> None:
    assert [root_path(one) for one in ("/workspace", "data/reports", "/a/b-c_d.e")] == [
        "/workspace",
        "data/reports",
        "/a/b-c_d.e",
    ]
    assert file_path("data/reports/x", "data/reports") == "data/reports/x"
    for odd in ("", "/", "/a/", "..", "/a/../b", "/a//b", "./a", "/a b", "~/a", "/a\\b", "/a.", "/ä"):
        with pytest.raises(PolicyError, match="root"):
            root_path(odd)


def beneath(text: str) -> str:
    return file_path(text, "/workspace")


PARTS = st.sampled_from(
    ["a", "A", ".", "..", "@", "/", "//", "\\", "%2e", "/workspace", "example.com", "xn--", " ", "~", "-", "\u200b"]
)


@pytest.mark.parametrize("parse", [domain, email, identifier, beneath, lambda text: url(text).text])
@given(
    text=st.lists(PARTS, max_size=7).map("".join)
    | st.text(max_size=30)
    | st.text(max_size=20).map("/workspace/".__add__)
)
@example(text="/workspace/a/./b//")
@example(text="A@B.CC")
def test_a_parser_refuses_or_gives_a_fixed_point(parse: Callable[[str], str], text: str) -> None:
    try:
        found = parse(text)
    except PolicyError:
        return
    assert parse(found) == found
    found.encode()
    assert not re.search(r"[\x00-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", found)
    if parse is beneath:
        path = PurePosixPath(found)
        assert str(path) == found
        assert path.is_relative_to("/workspace")
        assert ".." not in path.parts
