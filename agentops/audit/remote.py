"""Anchors over the network: a witness that refuses forks, and an S3 bucket whose objects cannot be deleted.

Invariant: every request has a time limit and every answer a size limit. The S3 anchor is tested against botocore's own
model of the API (requests and answers), not against a bucket: none can be reached where it was written.
"""

import base64
import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from agentops.audit import cosign, merkle
from agentops.audit.heads import MAX_HEADS, Head
from agentops.errors import AuditError, require

SECONDS = 5.0  # for one request
_MAX_NOTE = 8192  # bytes of an object in S3


@dataclass(slots=True)
class WitnessAnchor:
    """A witness (c2sp.org/tlog-witness): ours, or another with the same `/add-checkpoint`.

    With the witness's verifier key after `#`, heads count only with its cosignature.
    """

    spec: str
    _sizes: dict[str, int] = field(default_factory=dict)  # log -> what the witness last said it has

    def publish(self, head: Head) -> None:
        """Prove to the witness that the head extends what it knows, and check its cosignature."""
        leaves = head.leaf_hashes()
        for _ in range(2):  # once more with the size it names
            old = self._sizes.get(head.log, 0)
            proof = merkle.consistency_proof(leaves, old) if 0 < old < len(leaves) else []
            status, body = self._ask("POST", "/add-checkpoint", request_body(old, proof, head.note))
            if status != 409:
                break
            self._sizes[head.log] = known = int(body) if re.fullmatch(rb"\d{1,16}\s*", body) else 0
            if known > len(leaves):
                raise AuditError(
                    f"{head.log}.log: {len(leaves)} records, but the anchor {self.spec} saw {known}: the log was cut"
                )
            if known == old:
                break
        if status in (409, 422):
            raise AuditError(f"{head.log}.log is not what the anchor {self.spec} saw before: the log was rewritten")
        if status != 200:
            said = body.decode(errors="replace").strip()[:200]
            raise AuditError(f"the anchor {self.spec} refused the head: {status} {said!r}")
        self._check(head.note, body)
        self._sizes[head.log] = len(leaves)

    def kept(self) -> list[bytes]:
        """The newest note of each log that the witness knows."""
        status, body = self._ask("GET", "/checkpoints")
        try:
            found = [note.encode() for note in orjson.loads(body)] if status == 200 else []
        except (ValueError, AttributeError, TypeError):
            raise AuditError(f"the anchor {self.spec} did not answer with a list of notes") from None
        if status != 200:
            raise AuditError(f"the anchor {self.spec} answered {status}")
        for note in found:
            self._check(*cosign.split(note))
        return found

    def _check(self, note: bytes, lines: bytes) -> None:
        verifier = urlsplit(self.spec).fragment
        if verifier:
            cosign.cosigned_at(note, lines, verifier)

    def _ask(self, method: str, path: str, content: bytes = b"") -> tuple[int, bytes]:
        import httpx  # a third of a second that a process without a witness does not spend

        url = self.spec.partition("#")[0].rstrip("/") + path
        try:
            with httpx.stream(method, url, content=content, timeout=SECONDS, follow_redirects=False) as answer:
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_HEADS:
                        raise AuditError(f"the anchor {self.spec} answered with more than {MAX_HEADS} bytes")
                return answer.status_code, body
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # OSError: no TLS roots on this machine
            raise AuditError(f"the anchor {self.spec} does not answer: {type(error).__name__}") from None


@dataclass(slots=True)
class S3Anchor:
    """An object for each head, in COMPLIANCE mode: nobody can delete or replace it before its time, no administrator.

    The bucket must have object lock. Region, endpoint and credentials come from where boto3 looks for them.
    """

    spec: str
    bucket: str
    prefix: str
    days: int  # how long an object is kept
    _client: Any = None

    @classmethod
    def parse(cls, spec: str) -> "S3Anchor":
        """From `s3://bucket/prefix?days=365`.

        Raises:
            AuditError: `days` is not a number from 1 to 36500, or there is something else after `?`.
        """
        parts = urlsplit(spec)
        options = parse_qs(parts.query, keep_blank_values=True)
        days = options.pop("days", ["365"])[-1]
        if options or not re.fullmatch(r"[1-9]\d{0,4}", days) or int(days) > 36_500:
            raise AuditError(f"{spec!r} is not an anchor: s3://BUCKET/PREFIX?days=N with N from 1 to 36500")
        return cls(spec, parts.netloc, parts.path.strip("/"), int(days))

    def publish(self, head: Head) -> None:
        """Put the note under a key of its own."""
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=self.days)
        name = f"{head.log}/{head.checkpoint.size:016d}-{head.checkpoint.root.hex()[:16]}.note"
        self._call(
            "put_object",
            Bucket=self.bucket,
            Key=f"{self.prefix}/{name}" if self.prefix else name,
            Body=head.note,
            ContentType="text/plain; charset=utf-8",
            ChecksumAlgorithm="SHA256",  # S3 demands a checksum with a lock
            ObjectLockMode="COMPLIANCE",
            ObjectLockRetainUntilDate=until,
        )

    def kept(self) -> list[bytes]:
        """Every version under the prefix: a delete marker, or a version put over another, hides none."""
        found: list[bytes] = []
        after: dict[str, str] = {}
        while True:
            page = self._call("list_object_versions", Bucket=self.bucket, Prefix=self.prefix, **after)
            for version in page.get("Versions", ()):
                if version["Size"] <= _MAX_NOTE:
                    answer = self._call(
                        "get_object", Bucket=self.bucket, Key=version["Key"], VersionId=version["VersionId"]
                    )
                    found.append(answer["Body"].read(_MAX_NOTE))
            if not page.get("IsTruncated"):
                return found
            after = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def client(self) -> Any:
        """The boto3 client for S3, made once.

        Raises:
            MissingExtra: boto3 is not installed.
        """
        if self._client is None:
            boto3, config = require("boto3", "s3"), require("botocore.config", "s3")
            limits = config.Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries={"max_attempts": 2})
            self._client = boto3.client("s3", config=limits)
        return self._client

    def _call(self, operation: str, **arguments: Any) -> Any:
        exceptions = require("botocore.exceptions", "s3")
        try:
            return getattr(self.client(), operation)(**arguments)
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", "") or type(error).__name__
            raise AuditError(f"the anchor {self.spec}: {operation} failed ({code})") from None


def request_body(old: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """The body of `/add-checkpoint`."""
    lines = [b"old %d" % old, *map(base64.b64encode, proof)]
    return b"\n".join(lines) + b"\n\n" + note
