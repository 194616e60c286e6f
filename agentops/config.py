"""Settings: `[tool.agentops]` in the project's pyproject.toml, overridden by AGENTOPS_* environment variables.

Invariant: a Settings value is complete and validated; an unknown key or a value out of range is a ConfigError that
names the key and the place. Secrets (API keys, Redis passwords) come only from the environment and print as `***`.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from agentops.errors import ConfigError

ENVIRONMENT_PREFIX = "AGENTOPS_"
SECRET_KEYS = ("api_keys", "redis_url")
_ANCHOR = re.compile(r"(?:file|git):/[^\s]+|(?:s3|https?)://[^\s@]+")


class Settings(BaseModel):
    """Everything a deployment can set. Each field is a key of `[tool.agentops]` and, upper-cased, AGENTOPS_<KEY>."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: str = Field(
        "agentops", pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="service name on spans and segments"
    )
    home: str = Field(".agentops", description="folder of local state, relative to the project root")
    tenant: str = Field("default", min_length=1, max_length=64, description="tenant of local commands")
    world: str = Field("tools.world", description="module of the project that creates and opens the tools' world")
    pipeline: str = Field("", description="pipeline used when a command names none; empty = the only one")
    host: str = Field("127.0.0.1", description="address `agentops serve` binds; others need API keys or issuers")
    port: int = Field(8321, ge=0, le=65535, description="port `agentops serve` binds; 0 = any free one")
    api_keys: SecretStr | None = Field(
        None, description="environment only: comma-separated id:secret:tenant:user, optionally :role+role:YYYY-MM-DD"
    )
    redis_url: SecretStr | None = Field(None, description="environment only: shared cache and state")
    otlp_endpoint: str = Field("", description="also export spans to this OTLP/HTTP endpoint")
    planner_model: str = Field("", description="LiteLLM model that plans what playbooks do not cover; empty = hand-off")
    encoder: str = Field("", description="folder with model.onnx and tokenizer.json; empty = the packaged MiniLM")
    causal_model: str = Field("", description="Hugging Face folder or id; empty = the packaged SmolLM2-135M")
    use_causal: bool = Field(False, description="ask the small language model when the encoder is unsure (needs torch)")
    max_concurrency: int = Field(64, ge=1, le=10_000, description="requests served at the same time")
    audit_anchors: tuple[str, ...] = Field(
        (), max_length=8, description="where signed heads of the audit log are published: file:, git:, s3:, http(s):"
    )
    decision_days: int = Field(
        7, ge=1, le=365, description="days that encrypted decision records are kept for `agentops policy diff`"
    )
    private_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), max_length=16, description="where names of tools' hosts may lead beside the public internet: 10.20.0.0/16"
    )
    request_timeout_s: float = Field(30.0, gt=0, le=3600, description="deadline of one request, in seconds")

    @field_validator("audit_anchors", "private_networks", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """The environment has them in one string, separated by commas."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("audit_anchors")
    @classmethod
    def _anchors(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for spec in value:
            if not _ANCHOR.fullmatch(spec):
                raise ValueError(
                    f"{spec[:120]!r} is not an anchor: use file:/PATH, git:/REPOSITORY, s3://BUCKET/PREFIX?days=N or "
                    "http(s)://HOST:PORT, without a password"
                )
        return value


def load(table: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from a `[tool.agentops]` table and the environment (the environment wins).

    Raises:
        ConfigError: an unknown key, a secret in the file, or a value out of range; names the key and where it was set.
    """
    environment = os.environ if environment is None else environment
    table = dict(table or {})
    for key in SECRET_KEYS:
        if key in table:
            raise ConfigError(
                f"[tool.agentops] {key} is a secret and may not be in a file: "
                f"set {ENVIRONMENT_PREFIX}{key.upper()} instead"
            )
    origin = {key: f"[tool.agentops] {key}" for key in table}
    for key in Settings.model_fields:
        name = ENVIRONMENT_PREFIX + key.upper()
        if environment.get(name):
            table[key] = environment[name]
            origin[key] = name
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(set(Settings.model_fields) - set(SECRET_KEYS)))
            raise ConfigError(f"[tool.agentops] {key!r} is not a setting; known settings: {known}") from None
        shown = "***" if key in SECRET_KEYS else repr(table.get(key))
        raise ConfigError(f"{origin.get(key, key)} = {shown} is not allowed: {first['msg']}") from None


def loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may be anything: no."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def home(root: Path, settings: Settings) -> Path:
    """The folder of local state, created for its owner alone and with its own .gitignore."""
    path = (root / settings.home).resolve()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)  # traces and the tools' world are in it
    ignore = path / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return path
