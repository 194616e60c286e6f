"""A small witness: an HTTP service on another machine that remembers the newest head of each log and refuses forks.

`POST /add-checkpoint` (c2sp.org/tlog-witness): `old SIZE`, base64 lines of a consistency proof, an empty line, the
signed note. 200 with the witness's cosignature; 400 malformed, 403 not signed by a key it was started with, 409 with
the size it has when `old` is another one or the same size has another root, 422 when the proof does not fit.
`GET /checkpoints`: the cosigned newest note of each log, as a JSON list. `GET /key`: its verifier key.

Invariant: a head is answered for only after it was flushed to the disk, and never again will a smaller one, or one that
does not extend it, be accepted for that log. It keeps no records and trusts no key it was not given.
"""

import base64
import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentops.audit import cosign, merkle, notes
from agentops.errors import AuditError

MAX_BODY = 16 * 1024  # bytes: a note is under 4 KiB, a proof at most 63 lines of 45
MAX_LOGS = 100_000
_WAIT_SECONDS = 10.0  # for the next bytes of a request
_WHOLE_SECONDS = 30.0  # for a request and its answer
_AT_ONCE = 32  # connections


class Refusal(Exception):
    """A request that is answered with an error: status and body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Witness:
    """The heads of the logs that `keys` sign, kept in `home`. One process per folder."""

    def __init__(self, home: Path, keys: Sequence[bytes], name: str = "agentops-witness") -> None:
        """Read what was remembered.

        Raises:
            AuditError: no key, another process serves this folder, or a remembered head is damaged.
        """
        if not keys:
            raise AuditError("a witness needs the public key of at least one log: give it key.pub of the audit folder")
        self.name = name
        self._heads: dict[str, tuple[notes.Checkpoint, bytes]] = {}  # file name -> head, cosigned note
        self._keys = tuple(keys)
        self._lock = threading.Lock()
        try:
            (home / "heads").mkdir(parents=True, exist_ok=True, mode=0o700)
            self._key = notes.load_or_create_key(home, name, cosign.ALGORITHM)
            self._only = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise AuditError(f"the witness's folder {str(home)!r} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._only, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._only)
            raise AuditError(f"another process is the witness of {str(home)!r}: stop it first") from None
        self._folder = home / "heads"
        for path in self._folder.glob("*.note"):
            self._read(path)

    @property
    def verifier(self) -> str:
        """The key that checks this witness's cosignatures."""
        return notes.verifier_key(notes.public_bytes(self._key), self.name, cosign.ALGORITHM)

    def add_checkpoint(self, body: bytes) -> bytes:
        """Remember a head that extends the known one; returns the cosignature line.

        Raises:
            Refusal: with the status that the protocol names.
        """
        old, proof, note = _parse(body)
        public, head = self._open(note)
        where = _file(public, head.log)
        with self._lock:
            known = self._heads[where][0] if where in self._heads else None
            size = known.size if known else 0
            if old != size:
                raise Refusal(409, str(size))
            if old > head.size:
                raise Refusal(400, "the old size is larger than the checkpoint's")
            if known is None and len(self._heads) >= MAX_LOGS:
                raise Refusal(403, "this witness remembers as many logs as it can")
            if known is not None and size == head.size and known.root != head.root:
                raise Refusal(409, str(size))
            if size == 0 and proof:
                raise Refusal(422, "a first checkpoint has no proof")
            if size and not merkle.verify_consistency(size, head.size, known.root if known else b"", head.root, proof):
                raise Refusal(422, "the proof does not show that the known records are still there")
            line = cosign.cosign(note, self.name, self._key, int(time.time()))
            notes.replace_durably(self._folder / where, note + line)
            self._heads[where] = (head, note + line)
        return line

    def checkpoints(self) -> list[str]:
        """The cosigned newest note of each log."""
        with self._lock:
            return [note.decode() for _, note in self._heads.values()]

    def close(self) -> None:
        """Let another process be the witness."""
        os.close(self._only)

    def _open(self, note: bytes) -> tuple[bytes, notes.Checkpoint]:
        for public in self._keys:
            try:
                return public, notes.open_note(note, public)
            except AuditError:
                continue
        raise Refusal(403, "the checkpoint is not signed by a log that this witness knows")

    def _read(self, path: Path) -> None:
        try:
            note, _ = cosign.split(path.read_bytes())
            public, head = self._open(note)
        except Refusal:  # forgetting a head would let its log be rolled back
            raise AuditError(
                f"the remembered head {str(path)!r} is damaged or signed by none of the given keys: "
                "restore it, or give the log's key.pub too"
            ) from None
        if path.name != _file(public, head.log):
            raise AuditError(f"the remembered head {str(path)!r} is another log's: restore it from a backup")
        self._heads[path.name] = (head, path.read_bytes())


def serve(witness: Witness, host: str, port: int) -> ThreadingHTTPServer:
    """A server for `witness`; the caller runs `serve_forever` and closes it.

    Raises:
        OSError: the address is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _WAIT_SECONDS
        server_version = "agentops-witness"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path == "/checkpoints":
                self._answer(200, json.dumps(witness.checkpoints()).encode(), "application/json")
            elif self.path == "/key":
                self._answer(200, witness.verifier.encode() + b"\n")
            else:
                self._answer(404, b"there are /add-checkpoint, /checkpoints and /key\n")

        def do_POST(self) -> None:
            self.close_connection = True
            length = self.headers.get("Content-Length", "")
            if self.path != "/add-checkpoint":
                self._answer(404, b"post to /add-checkpoint\n")
            elif not length.isascii() or not length.isdigit() or int(length[:9]) > MAX_BODY:
                self._answer(413, b"send a Content-Length of at most %d\n" % MAX_BODY)
            else:
                try:
                    self._answer(200, witness.add_checkpoint(self.rfile.read(int(length))))
                except Refusal as refusal:
                    kind = "text/x.tlog.size" if refusal.status == 409 else "text/plain"
                    self._answer(refusal.status, f"{refusal}\n".encode(), kind)
                except OSError:
                    self._answer(500, b"the witness could not write the head down\n")

        def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not logged: what there is to know is in the remembered heads."""

    return _Server((host, port), Handler)


class _Server(ThreadingHTTPServer):
    """A bounded number of connections, each for a bounded time: slow clients cost no more than that."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            with suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(_WHOLE_SECONDS, _hang_up, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not printed: a client that goes away is no fault of ours."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _parse(body: bytes) -> tuple[int, list[bytes], bytes]:
    head, separator, note = body.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    try:
        size = first.removeprefix(b"old ").decode("ascii")
        if not separator or not first.startswith(b"old ") or not size.isdigit() or len(size) > 16 or len(lines) > 63:
            raise ValueError
        proof = [base64.b64decode(line, validate=True) for line in lines]
    except ValueError:
        raise Refusal(400, "not `old SIZE`, proof lines, an empty line and a signed note") from None
    return int(size), proof, note


def _file(public: bytes, log: str) -> str:
    return hashlib.sha256(public + log.encode()).hexdigest() + ".note"
