"""The access log: one line of JSON for each request that ended, written aside so that no traffic waits for a disk.

No text of prompts or answers unless that was asked for. What cannot be written is said once, counted, and dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shlex
import stat
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from speclift.core.address import shown
from speclift.core.document import Json
from speclift.core.errors import UsageError
from speclift.core.routing import ACCESS_FORMAT, RoutedRequest
from speclift.core.units import Bytes, Seconds

# How long a line waits for those after it, which are written with it.
FLUSH_EVERY_S: Seconds = 0.2
# What may wait to be written: a disk that hangs for seconds loses nothing, one that hangs for long costs no memory.
WAITING_MAX = 20_000
WAITING_BYTES_MAX: Bytes = 64 << 20
# Of one request and its answer: what is longer is logged without its text. Lines of 64 MiB can be read back.
TEXT_BYTES_MAX: Bytes = 8 << 20
LABEL_CHARACTERS_MAX = 200
# What is still waiting at the end of the gateway may take so long.
CLOSE_LIMIT_S: Seconds = 5.0
# For the user alone, as studies are: it may hold what people asked.
FILE_MODE = 0o600
# Rights of group and others.
OTHERS = 0o077


class AccessLog:
    def __init__(self, path: Path, *, keeps_text: bool, say: Callable[[str], None]) -> None:
        """UsageError where the file cannot be opened now. `say` is called from another thread."""
        self._path, self._keeps_text, self._say = path, keeps_text, say
        self._news = threading.Condition()
        self._waiting: list[RoutedRequest] = []
        self._waiting_bytes = 0
        self._wants_reopening = self._is_closed = False
        self._dropped = 0
        try:
            self._file: int | None = _opened(path)
        except OSError as error:
            raise UsageError(
                f"the access log {path} cannot be written: {error.strerror or error}",
                hint="a folder that exists and that you may write to: --access-log FILE",
            ) from error
        mode = stat.S_IMODE(os.fstat(self._file).st_mode)
        if mode & OTHERS:
            say(
                f"the access log {path} is open to others (mode {mode:o}): chmod 600 {shlex.quote(str(path))}"
            )
        self._is_mid_line = False
        self._trouble = ""
        self._writer = threading.Thread(target=self._write_on, name="access log", daemon=True)
        self._writer.start()

    def note(self, request: RoutedRequest) -> None:
        """Never waits."""
        size = _text_bytes(request) if self._keeps_text else 0
        with self._news:
            is_full = len(self._waiting) >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX
            if is_full or self._is_closed:
                self._dropped += 1
                return
            self._waiting.append(request)
            self._waiting_bytes += size
            if len(self._waiting) == 1:
                self._news.notify()

    def reopen(self) -> None:
        """The file was moved away: from now on a new one of the same name is written."""
        with self._news:
            self._wants_reopening = True
            self._news.notify()

    def close(self) -> None:
        """When what waits was written, or CLOSE_LIMIT_S later."""
        with self._news:
            self._is_closed = True
            self._news.notify()
        self._writer.join(CLOSE_LIMIT_S)

    def _write_on(self) -> None:
        is_closed = False
        while not is_closed:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._wants_reopening or self._is_closed)
                # Others come meanwhile; the end does not wait for them.
                self._news.wait_for(lambda: self._is_closed, timeout=FLUSH_EVERY_S)
                requests, self._waiting, self._waiting_bytes = self._waiting, [], 0
                is_closed, wants_reopening = self._is_closed, self._wants_reopening
                self._wants_reopening = False
                dropped, self._dropped = self._dropped, 0
            self._write(requests, wants_reopening=wants_reopening, dropped=dropped)
        if self._file is not None:
            os.close(self._file)

    def _write(self, requests: Sequence[RoutedRequest], *, wants_reopening: bool, dropped: int) -> None:
        lines = b"".join(access_line(request, keeps_text=self._keeps_text) for request in requests)
        try:
            if wants_reopening or not _is_still_there(self._file, self._path):
                self._reopened()
            if lines:
                self._append(lines)
        except OSError as error:
            self._complain(f"the access log {self._path} cannot be written: {error.strerror or error}")
            return
        if dropped:
            self._complain(f"the access log {self._path} is slower than the traffic: lines are dropped")
        elif self._trouble:
            self._trouble = ""
            self._say(f"the access log {self._path} is written again")

    def _append(self, lines: bytes) -> None:
        """Whole lines at once. What a full disk cut off gets a line end, and is one line that cannot be read."""
        assert self._file is not None
        rest = memoryview(b"\n" + lines if self._is_mid_line else lines)
        while rest:
            written = os.write(self._file, rest)
            self._is_mid_line = rest[written - 1] != ord("\n") if written else self._is_mid_line
            rest = rest[written:]

    def _reopened(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk says at the end it has said before
                os.close(self._file)
            self._file = None
        self._file = _opened(self._path)
        self._is_mid_line = False

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"{trouble}; traffic goes on without it")


def access_line(request: RoutedRequest, *, keeps_text: bool) -> bytes:
    """ASCII only: whatever was asked and answered, it acts in no terminal and ends no line."""
    line = _line(request)
    if keeps_text:
        is_kept = _text_bytes(request) <= TEXT_BYTES_MAX
        # Null where there was none that could be kept.
        line["request"] = _body(request.request_body) if is_kept else None
        line["response"] = request.answer_text if is_kept else None
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _line(request: RoutedRequest) -> dict[str, Json]:
    features, route = request.features, request.route
    return {
        "gateway": ACCESS_FORMAT,
        # On the wall's clock, in words and in seconds.
        "at": datetime.fromtimestamp(request.arrived_s, UTC).isoformat(timespec="milliseconds"),
        "arrival_s": round(request.arrived_s, 6),
        "id": request.request_id[:LABEL_CHARACTERS_MAX],
        "path": features.path[:LABEL_CHARACTERS_MAX],
        "is_generation": features.is_generation,
        "segment": route.segment[:LABEL_CHARACTERS_MAX],
        "stream": features.is_stream,
        "model": None if features.model is None else features.model[:LABEL_CHARACTERS_MAX],
        "temperature": _rounded(features.temperature),
        "max_tokens": features.max_tokens,
        "response_format": features.response_format,
        "tools": features.has_tools,
        "prompt_characters": features.prompt_characters,
        "turns": features.turns,
        "repetition": _rounded(features.repetition),
        # Of one conversation always the same; says nothing of it.
        "session": None if features.session is None else _digest(features.session),
        "pool": request.pool,
        "routed_to": route.pool,
        "canary": route.is_canary,
        "reasons": route.reasons,
        "server": None if request.server is None else shown(request.server),
        "attempts": request.attempts,
        "running": request.running,
        "end": request.end,
        "status": request.status,
        "ttft_s": _rounded(request.ttft_s),
        "tpot_s": _rounded(request.tpot_s),
        "e2e_s": round(request.e2e_s, 6),
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "drafted": request.drafted,
        "accepted": request.accepted,
        "finish_reason": request.finish_reason,
    }


def _body(raw: bytes | None) -> Json:
    """None for what is no JSON object that can be written again."""
    try:
        body: Json = json.loads(raw or b"null")
        json.dumps(body, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _digest(session: str) -> str:
    """A session may be named after a person."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text_bytes(request: RoutedRequest) -> Bytes:
    return len(request.request_body or b"") + len(request.answer_text or "")


def _rounded(value: float | None) -> float | None:
    """The number with six digits; None for NaN, which JSON has not."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def _opened(path: Path) -> int:
    """Without waiting: a pipe that nobody reads is an OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, FILE_MODE)
    os.set_blocking(file, True)
    return file


def _is_still_there(file: int | None, path: Path) -> bool:
    """True if the name still means the file that is open."""
    if file is None:
        return False
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
