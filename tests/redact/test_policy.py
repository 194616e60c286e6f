"""redaction.toml: every mistake with its line; the key stays private and the same."""

import stat
from pathlib import Path

import pytest

from agentops.errors import PolicyError
from agentops.redact import load, problems


def test_the_projects_own_file_is_right(repo: Path, tmp_path: Path) -> None:
    assert problems(repo / "policies") == []
    redactor = load(repo / "policies", tmp_path, environment={})
    assert redactor.text("help@shop.example and dana@example.org").startswith("help@shop.example and <EMAIL:")


def test_the_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    first = load(tmp_path, tmp_path / "home", environment={}).text("dana@example.org")
    file = tmp_path / "home" / "redaction.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load(tmp_path, tmp_path / "home", environment={}).text("dana@example.org") == first
    file.write_bytes(b"short")
    with pytest.raises(PolicyError, match=r"redaction\.key.*restore it"):
        load(tmp_path, tmp_path / "home", environment={})


def test_secrets_of_the_environment_and_listed_values_are_known(tmp_path: Path) -> None:
    (tmp_path / "known_values.txt").write_text("Ingrid Bergström\n\nLindenallee 12\n")
    environment = {
        "AGENTOPS_API_KEYS": "ops:very-long-secret-1:shop:ops,me:very-long-secret-2:shop:me:staff",
        "AGENTOPS_REDIS_URL": "redis://user:redis-pass-word@host:6379",
        "OPENAI_API_KEY": "plain-value-of-a-key",
        "HOME": "/home/very-long-home",
        "SHORT_TOKEN": "abc",
    }
    redactor = load(tmp_path, tmp_path, known_values=["Acme Rd 5"], environment=environment)
    text = redactor.text(
        "very-long-secret-1 very-long-secret-2 redis-pass-word plain-value-of-a-key INGRID  BERGSTRÖM lindenallee 12 "
        "Acme Rd 5 /home/very-long-home abc shop"
    )
    for gone in ("very-long-secret", "redis-pass", "plain-value", "BERGSTR", "lindenallee", "Acme"):
        assert gone not in text
    assert text.endswith("/home/very-long-home abc shop")


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("[kinds]\nemial = true\n", 2, "unknown kind 'emial'"),
        ("[kinds]\nemail = 1\n", 2, "is true or false"),
        ("colour = 1\n", 1, "unknown key 'colour'"),
        ("# x\nallowed_domains = ['a@b.c']\n", 2, "is not a domain"),
        ("regions = ['Germany']\n", 1, "not an ISO country code"),
        ("personal_fields = 'name'\n", 1, "a list of texts"),
        ("[[patterns]]\nkind = 'X1'\n", 1, "has kind and regex"),
        ("[[patterns]]\nkind = 'lower'\nregex = 'a'\n", 2, "capital letters"),
        ("[[patterns]]\nkind = 'CUST'\nregex = '(?=a)b'\n", 2, "not a valid RE2"),
        ("[[patterns]]\nkind = 'CUST'\nregex = 'a*'\n", 3, "matches the empty text"),
        ("[kinds\n", 1, "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_refused(tmp_path: Path, content: str, line: int, message: str) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "redaction.toml").write_text(content)
    found = problems(policies)
    assert len(found) == 1
    assert (found[0].path, found[0].line) == ("policies/redaction.toml", line)
    assert message in found[0].message
    with pytest.raises(PolicyError, match=r"redaction\.toml"):
        load(policies, tmp_path, environment={})


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    (tmp_path / "redaction.toml").write_text("a = 1\nb = 2\nregions = ['x']\n[kinds]\nq = true\n")
    assert len(problems(tmp_path)) == 4
