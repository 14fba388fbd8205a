"""An OpenAI-compatible server whose truth is known: for fast tests, and to check what a study finds.

Run as `python -m speclift.testing.fake_server --port 0 --truth k=4 --truth acceptance=0.8`. Tokens leave at
deadlines chained from the moment the request starts, so a late wake-up never delays the tokens after it;
a burst is encoded before its deadline and leaves in one write. Listens on loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from speclift.core.document import Json
from speclift.core.errors import UsageError
from speclift.core.json_reading import as_object, as_text
from speclift.core.units import Seconds
from speclift.http.message import USUAL_BOUNDS, HttpError
from speclift.http.pages import EVENTS, TEXT, Caller, Handler, WebAnswer, WebServer, json_page
from speclift.testing.fake_corruption import Around, character_id, corrupt
from speclift.testing.fake_dialect import MODEL, Reply, ServedTotals, chunk_spans, metrics_text, read_body
from speclift.testing.fake_truth import (
    VOCABULARY,
    FakeAnswer,
    FakeRequest,
    Fault,
    Truth,
    changed_truth,
    corruption_of,
    launch_factor,
    other_choices,
    parse_truth,
    script_for,
)

VERSION = "fake-1"
DONE = b"data: [DONE]\n\n"
GARBAGE = b'{"choices": [{"delta": \xff\xfe not JSON'
# A client that asks for the slots of a server without a queue is told a number no test fills.
SLOTS_SHOWN_WHEN_UNLIMITED = 64
# Long enough for the last answer to leave the socket before the process aborts.
CRASH_DELAY_S = 0.02
# select() cannot watch more (FD_SETSIZE); beyond it connections wait in the backlog instead of breaking the loop.
DESCRIPTORS_MAX = 1024
PROMPTS_KEPT = 32


class FakeServer:
    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self._loop = asyncio.get_running_loop()
        self._epoch_s = time.time() - self._loop.time()
        self._launch_factor = launch_factor(truth)
        self._totals = ServedTotals(started_s=time.time())
        self._log: list[dict[str, Json]] = []
        self._slots = asyncio.Semaphore(truth.slots or sys.maxsize)
        self._asked = 0
        self._waiting = 0
        self._in_flight = 0
        # What others asked lately, for answers that go wrong with it.
        self._prompts: deque[str] = deque(maxlen=PROMPTS_KEPT)

    def web_server(self) -> WebServer:
        routes = self._routes()

        async def handler(caller: Caller) -> WebAnswer | None:
            asked = routes.get((caller.request.method, caller.request.path))
            return json_page({"error": {"code": 404}}, status=404) if asked is None else await asked(caller)

        def refuse(refusal: HttpError) -> WebAnswer:
            return _error(refusal.status, "invalid_request_error", refusal.words)

        return WebServer(handler, bounds=USUAL_BOUNDS, refuse=refuse)

    def _routes(self) -> Mapping[tuple[str, str], Handler]:
        pages: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/truth/log"): self._truth_log,
            ("POST", "/truth"): self._change_truth,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
        }
        if self.truth.flavour != "plain":
            pages["GET", "/metrics"] = self._metrics
        if self.truth.flavour == "llamacpp":
            pages |= {("GET", "/slots"): self._slot_list, ("GET", "/props"): self._props}
        if self.truth.flavour == "vllm":
            pages["GET", "/version"] = self._version
        return dict.fromkeys(pages, self._refuse) if self.truth.never_ready else pages

    async def _refuse(self, _: Caller) -> WebAnswer:
        return _error(503, "unavailable_error", "Loading model")

    async def _health(self, _: Caller) -> WebAnswer:
        return json_page({"status": "ok"})

    async def _models(self, _: Caller) -> WebAnswer:
        adapters = [name for name in self.truth.adapters.split("/") if name]
        data = [{"id": MODEL, "object": "model"}]
        data += [{"id": name, "object": "model", "parent": MODEL} for name in adapters]
        return json_page({"object": "list", "data": data})

    async def _tokenize(self, caller: Caller) -> WebAnswer:
        """Character by character, which is how its bans work; as llama.cpp (content) and vLLM (prompt) ask for it."""
        try:
            said = json.loads(caller.request.body)
        except ValueError as error:
            return _error(400, "invalid_request_error", str(error))
        text = as_object(said).get("content") or as_object(said).get("prompt")
        return json_page({"tokens": [character_id(each) for each in (as_text(text) or "")]})

    async def _truth_log(self, _: Caller) -> WebAnswer:
        return json_page(self._log)

    async def _change_truth(self, caller: Caller) -> WebAnswer:
        """For requests from now on: `{"acceptance": 0.3}`."""
        try:
            said = json.loads(caller.request.body)
            if not isinstance(said, dict):
                raise UsageError(f"a truth is a JSON object, saw {type(said).__name__}")
            words = {
                key: value if isinstance(value, str) else json.dumps(value) for key, value in said.items()
            }
            self.truth = changed_truth(self.truth, [f"{key}={word}" for key, word in words.items()])
        except (ValueError, UsageError) as error:
            return _error(400, "invalid_request_error", str(error))
        return json_page({"changed": list(said)})

    async def _metrics(self, _: Caller) -> WebAnswer:
        text = metrics_text(self.truth, self._totals, running=self._in_flight, waiting=self._waiting)
        return WebAnswer(body=text.encode(), kind=TEXT)

    async def _slot_list(self, _: Caller) -> WebAnswer:
        drafts = self.truth.drafted_per_step > 0
        return json_page(
            [
                {"id": slot, "speculative": drafts, "is_processing": slot < self._in_flight}
                for slot in range(self._slots_shown())
            ]
        )

    async def _props(self, _: Caller) -> WebAnswer:
        return json_page({"build_info": VERSION, "total_slots": self._slots_shown(), "model_path": MODEL})

    async def _version(self, _: Caller) -> WebAnswer:
        return json_page({"version": VERSION})

    def _slots_shown(self) -> int:
        return self.truth.slots or SLOTS_SHOWN_WHEN_UNLIMITED

    async def _chat(self, caller: Caller) -> WebAnswer | None:
        return await self._complete(caller, is_chat=True)

    async def _completions(self, caller: Caller) -> WebAnswer | None:
        scored = await self._score(caller) if self.truth.sampler else None
        return scored or await self._complete(caller, is_chat=False)

    async def _score(self, caller: Caller) -> WebAnswer | None:
        """Token mode tells how likely a prompt is; None where nobody asked."""
        from speclift.testing.fake_chain import prompt_logprobs

        with contextlib.suppress(ValueError):
            body = json.loads(caller.request.body)
            if isinstance(body, dict) and isinstance(body.get("prompt_logprobs"), int):
                try:
                    rows = prompt_logprobs(
                        body.get("prompt", ""), listed=body["prompt_logprobs"], tokens=len(VOCABULARY)
                    )
                except UsageError as error:
                    return _error(400, "invalid_request_error", str(error))
                return json_page({"choices": [{"index": 0, "text": "", "prompt_logprobs": rows}]})
        return None

    async def _complete(self, caller: Caller, *, is_chat: bool) -> WebAnswer | None:
        received_s = self._loop.time()
        try:
            ask, form = read_body(json.loads(caller.request.body), is_chat=is_chat)
        except (ValueError, UsageError) as error:
            return _error(400, "invalid_request_error", str(error))
        script = script_for(self.truth, ask, in_flight=self._in_flight + 1)
        if Fault.HTTP_500 in script.faults:
            return _error(500, "server_error", "this request was chosen to fail")
        self._asked += 1
        id = f"fake-{self._asked}"
        prompt_s = script.burst_s(self.truth, script.bursts[0], in_flight=1) * self._launch_factor
        reply = Reply(self.truth, script, form, id=id, created=int(time.time()), prompt_s=prompt_s)
        reply.others = other_choices(self.truth, ask)
        go_wrong = partial(self._go_wrong, reply, ask, asked=self._asked)
        self._prompts.append(ask.prompt)
        if self.truth.sampler:
            from speclift.testing.fake_chain import prompt_ids

            reply.prompt_ids = prompt_ids(ask.prompt, tokens=len(VOCABULARY))
        async with self._slot():
            # Only a wait for a slot moves the start; reading the request is part of the time to first token.
            started_s = self._loop.time() if self.truth.slots else received_s
            schedule = BurstTimes(self.truth, script, factor=self._launch_factor, started_s=started_s)
            note_finished = partial(self._note_finished, id, schedule, received_s=received_s)
            play = self._stream if form.stream else self._answer_at_once
            return await play(caller, reply, schedule, note_finished, go_wrong)

    def _go_wrong(self, reply: Reply, ask: FakeRequest, *, asked: int) -> None:
        """In the middle of an answer, where the truth wants that."""
        if not self.truth.corruption:
            return
        other = next((prompt for prompt in reversed(self._prompts) if prompt != ask.prompt), "")
        around = Around(streams=self._in_flight, before=asked - 1, joined=self._asked - asked, other=other)
        kind = corruption_of(self.truth, ask, around)
        if kind is None:
            return
        token = reply.script.bursts[reply.script.middle].start
        corrupted = corrupt(kind, reply.words, ask.words, ask.prompt, middle=token, other=other)
        if corrupted is not None:
            reply.corrupt(corrupted)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._slots.release()

    async def _stream(
        self,
        caller: Caller,
        reply: Reply,
        schedule: BurstTimes,
        note_finished: Callable[[], None],
        go_wrong: Callable[[], None],
    ) -> WebAnswer | None:
        caller.begin(EVENTS)
        with contextlib.suppress(ConnectionResetError):  # the client left: nobody is there to tell
            if await self._send_tokens(caller, reply, schedule, go_wrong):
                # Before the client can know of the end and read the counters.
                note_finished()
                await caller.write(_events(reply.closing(decode_s=schedule.decode_s)) + DONE)
            else:
                caller.hang_up()
        return None

    async def _send_tokens(
        self, caller: Caller, reply: Reply, schedule: BurstTimes, go_wrong: Callable[[], None]
    ) -> bool:
        """False where the connection is to be cut."""
        script = reply.script
        spans_by_burst = chunk_spans(script, tokens_per_chunk=self.truth.tokens_per_chunk)
        for index, (burst, spans) in enumerate(zip(script.bursts, spans_by_burst, strict=True)):
            schedule.advance(index, in_flight=self._in_flight)
            decode_s = schedule.decode_s
            if index == script.middle:
                go_wrong()
            chunks = [reply.tokens(start, end, burst, decode_s=decode_s) for start, end in spans]
            data = _events([*(reply.opening() if index == 0 else []), *chunks])
            if index == script.middle and Fault.GARBAGE in script.faults:
                data = b"data: " + GARBAGE + b"\n\n" + data
            await schedule.reach()
            if index == script.middle and Fault.CUT in script.faults:
                return False
            if data:
                await caller.write(data)
        return True

    async def _answer_at_once(
        self,
        caller: Caller,
        reply: Reply,
        schedule: BurstTimes,
        note_finished: Callable[[], None],
        go_wrong: Callable[[], None],
    ) -> WebAnswer | None:
        script = reply.script
        for index in range(len(script.bursts)):
            schedule.advance(index, in_flight=self._in_flight)
            if index == script.middle:
                go_wrong()
            await schedule.reach()
        if Fault.CUT in script.faults:
            caller.hang_up()
            return None
        note_finished()
        if Fault.GARBAGE in script.faults:
            return WebAnswer(body=GARBAGE)
        return json_page(reply.whole(decode_s=schedule.decode_s))

    def _note_finished(self, id: str, schedule: BurstTimes, *, received_s: Seconds) -> None:
        self._totals.add(schedule.script)
        last = schedule.script.bursts[-1]
        self._totals.add_times(
            ttft_s=schedule.first_s - received_s,
            decode_s=schedule.last_s - schedule.first_s,
            tokens=last.end,
        )
        self._log.append(
            {
                "id": id,
                "received_s": self._epoch_s + received_s,
                "first_token_s": self._epoch_s + schedule.first_s,
                "last_token_s": self._epoch_s + schedule.last_s,
                "tokens": last.end,
                "drafted": last.drafted,
                "accepted": last.accepted,
                # How far the machine, not the truth, delayed a burst.
                "late_s_max": schedule.late_s_max,
            }
        )
        if len(self._log) == self.truth.crash_after:
            sys.stderr.write(f"fake_server: aborting after {len(self._log)} finished requests\n")
            sys.stderr.flush()
            self._loop.call_later(CRASH_DELAY_S, os.abort)


class BurstTimes:
    """When each burst of one request is due: every deadline counts from the one before, never from now."""

    def __init__(self, truth: Truth, script: FakeAnswer, *, factor: float, started_s: Seconds) -> None:
        self.script = script
        self._truth, self._factor = truth, factor
        self._deadline_s = started_s
        self._first_deadline_s = started_s
        self.first_s: Seconds = started_s
        self.last_s: Seconds = started_s
        self.late_s_max: Seconds = 0.0
        self._index = -1

    @property
    def decode_s(self) -> Seconds:
        """From the first token to the burst now due."""
        return self._deadline_s - self._first_deadline_s

    def advance(self, index: int, *, in_flight: int) -> None:
        burst = self.script.bursts[index]
        self._deadline_s += self.script.burst_s(self._truth, burst, in_flight=in_flight) * self._factor
        if index == self.script.middle and Fault.STALL in self.script.faults:
            self._deadline_s += self._truth.stall_s
        if index == 0:
            self._first_deadline_s = self._deadline_s
        self._index = index

    async def reach(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._deadline_s - loop.time()))
        self.last_s = loop.time()
        self.first_s = self.last_s if self._index == 0 else self.first_s
        self.late_s_max = max(self.late_s_max, self.last_s - self._deadline_s)


def _events(payloads: Sequence[Mapping[str, Json]]) -> bytes:
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)


def _error(status: int, kind: str, message: str) -> WebAnswer:
    return json_page({"error": {"code": status, "type": kind, "message": message}}, status=status)


async def serve(truth: Truth, *, port: int, exit_on_eof: bool) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = FakeServer(truth).web_server()
    ((_, bound_port),) = await server.listen("127.0.0.1", port, backlog=DESCRIPTORS_MAX)
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{bound_port}"}) + "\n")
    sys.stdout.flush()
    if exit_on_eof:
        loop.add_reader(0, _set_at_eof, stopped)
    await stopped.wait()
    server.close()


def _set_at_eof(stopped: asyncio.Event) -> None:
    if not os.read(0, 4096):
        stopped.set()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fake_server", allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--truth", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--exit-on-eof", action="store_true")
    options = parser.parse_args(argv)
    try:
        truth = parse_truth(options.truth)
    except UsageError as error:
        sys.stderr.write(f"fake_server: {error} {error.hint}\n")
        return 2
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft_limit, DESCRIPTORS_MAX), hard_limit))
    if truth.crash_on_start:
        sys.stderr.write("fake_server: told to crash on start\n")
        sys.stderr.flush()
        os.abort()
    # epoll waits in whole milliseconds and wakes 0.6 ms late at the median; select waits in microseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        try:
            runner.run(serve(truth, port=options.port, exit_on_eof=options.exit_on_eof))
        except OSError as error:
            sys.stderr.write(f"fake_server: cannot listen on port {options.port}: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
