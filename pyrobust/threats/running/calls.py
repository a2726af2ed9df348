"""Send calls to models: several at once, within a budget and rate limits, with retries; one thread writes."""

from __future__ import annotations

import contextlib
import heapq
import logging
import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pyrobust.checks import count, integer, positive
from pyrobust.errors import ModelError, PyrobustError, WorkerError
from pyrobust.threats.models.answer import Answer, CallError, TextModel
from pyrobust.threats.running.cache import AnswerCache
from pyrobust.threats.running.keys import call_key
from pyrobust.threats.running.store import ThreatStore

logger = logging.getLogger(__name__)

#: Longest time in seconds that a call waits before it is tried again; a server that asks for more is not asked again.
_LONGEST_WAIT_S: Final = 600.0
#: Longest delay in seconds of the exponential back-off.
_LONGEST_BACKOFF_S: Final = 60.0
#: Time in seconds that calls in flight are given after an interrupt.
_GRACE_S: Final = 5.0
#: Largest number of calls in flight.
MOST_CALLS: Final = 1024
#: Calls answered by ledger or cache between two commits.
_BATCH: Final = 1000


@dataclass(frozen=True)
class CallLimits:
    """Budget, rates and retries of the calls of a run.

    The budget is that of the run over all its starts, those of judges and of tries that failed included. Before a call
    is sent, its largest cost must fit into what is left, and the number of calls also those of a model that judges the
    answers to come. A call that came back costs the tokens that the model counted, or its largest cost where it did
    not. One that was lost or failed costs its largest cost, and one that the server refused, with a status of 400 to
    499 or a time to wait, no tokens.

    Attributes:
        max_calls: largest number of calls; None for no limit.
        max_tokens: largest number of tokens; None for no limit.
        concurrency: calls in flight at once.
        calls_per_minute: rate at which calls are sent, evenly spaced; None for no limit.
        tokens_per_minute: the same for tokens, at the largest cost of each call.
        retries: tries after the first one where the error may pass, with exponential back-off and jitter, or after the
            time that the server names.
        backoff: mean seconds before the first of them; each doubles it.
        stop_after: the run ends with a ModelError after this many calls without any answer; None goes on.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> CallLimits(max_calls=1000, concurrency=16).retries
    5
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    concurrency: int = 8
    calls_per_minute: float | None = None
    tokens_per_minute: float | None = None
    retries: int = 5
    backoff: float = 1.0
    stop_after: int | None = 20

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_tokens"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 0)
        count("concurrency", self.concurrency, MOST_CALLS)
        for name in ("calls_per_minute", "tokens_per_minute"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        integer("retries", self.retries, 0, 100)
        positive("backoff", self.backoff)
        if self.stop_after is not None:
            count("stop_after", self.stop_after)


#: Receives the answer and the number of its call; None and 0 if there is none, for good.
Receive = Callable[[Answer | None, int], None]


@dataclass
class Call:
    """A question to a model.

    Attributes:
        model: the model.
        asked: 0 for the attacked model, 1 + its number for a judge.
        text: the question.
        attempt: its attempt.
        receive: called with the answer in the writing thread.
        follow: calls that an answer to this one leads to.
        tries: number of tries so far.
        number: number in the ledger.
        reserved: largest cost in tokens.
    """

    model: TextModel
    asked: int
    text: str
    attempt: int
    receive: Receive
    follow: int = 0
    tries: int = 0
    number: int = 0
    reserved: int = 0
    key: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = call_key(self.model.name, self.text, self.attempt)


#: A call, what came of it and the seconds that it took.
_Arrival = tuple[Call, Answer | CallError, float]


class Caller:
    """Sends calls and passes on their answers.

    The thread that calls ``run`` alone touches ledger and cache; others only call models. A call is in the ledger, and
    committed, before it is handed to them.

    Args:
        store: the ledger.
        limits: budget, rates and retries.
        cache: answers shared with other runs, or None.
        report: called after each round.
    """

    def __init__(
        self, store: ThreatStore, limits: CallLimits, cache: AnswerCache | None, report: Callable[[], None]
    ) -> None:
        self._store, self._limits, self._cache, self._report = store, limits, cache, report
        self._judging: deque[Call] = deque()  # sent before all others
        self._again: deque[Call] = deque()  # due for another try, or put back; sent before those of the source
        self._delayed: list[tuple[float, int, Call]] = []
        self._waiting: dict[str, list[Call]] = {}  # by the key of an unsettled call: others with the same key
        self._outbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._arrived: deque[_Arrival] = deque()
        self._arrival = threading.Event()
        self._flying = self._open = 0  # calls in flight; unsettled calls of the attacked model
        self._wake: float | None = None
        self._next_send = 0.0
        self._answering: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._fresh: dict[str, Answer] = {}
        self._fatal: PyrobustError | None = None
        self._ending = False
        #: Why the budget did not suffice; empty if it did.
        self.exhausted = ""

    def submit(self, call: Call) -> None:
        """Send a judge's call before all others."""
        self._judging.append(call)

    def run(self, source: Iterator[Call]) -> None:
        """Send the calls of the source, and those submitted meanwhile, until all are settled or the budget is used up.

        On an interrupt, nothing more is sent, and what arrives within a few seconds is kept.

        Raises:
            ModelError: calls fail without exception, or a server asks to wait too long.
            WorkerError: no worker is left to compute.
            StoreError: the ledger or the cache cannot be written.
        """
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._limits.concurrency)]
        for thread in threads:
            thread.start()
        try:
            self._report()
            while True:
                self._settle()
                calls = self._admit(source)
                self._commit()
                for call in calls:
                    self._outbox.put(call)
                self._report()
                if self._fatal is not None:
                    raise self._fatal
                if not self._flying and self._wake is None:
                    return
                self._arrival.wait(None if self._wake is None else max(0.0, self._wake - time.monotonic()))
                self._arrival.clear()
        except KeyboardInterrupt:
            self._finish(_GRACE_S)
            raise
        except BaseException:
            with contextlib.suppress(PyrobustError):
                self._finish(0.0)
            raise
        finally:
            for _ in threads:
                self._outbox.put(None)

    def _work(self) -> None:
        """Make calls until told to stop; in a thread of its own."""
        while (call := self._outbox.get()) is not None:
            begin = time.perf_counter()
            result: Answer | CallError
            try:
                result = call.model(call.text, call.attempt)
                if not isinstance(result, Answer):
                    result = CallError(f"expected an Answer from the model, got {type(result).__name__}")
            except CallError as error:
                result = error
            except WorkerError as error:  # nothing more can be computed; a resumed run tries the call again
                self._fatal, result = error, CallError(str(error), retryable=True)
            except BaseException as error:  # of a user's model
                result = CallError(f"{type(error).__name__}: {str(error)[:1000]}")
            self._arrived.append((call, result, time.perf_counter() - begin))
            self._arrival.set()

    def _admit(self, source: Iterator[Call]) -> list[Call]:
        """Reserve the calls that can be sent now; note when others can be sent although nothing arrives."""
        calls: list[Call] = []
        self._wake = None
        resolved = 0
        while self._flying < self._limits.concurrency and not self.exhausted and self._fatal is None:
            now = time.monotonic()
            if resolved == _BATCH:
                self._wake = now
                break
            while self._delayed and self._delayed[0][0] <= now:
                self._again.append(heapq.heappop(self._delayed)[2])
            queues = [part for part in (self._judging, self._again) if part]
            call = queues[0].popleft() if queues else next(source, None)
            if call is None:
                self._wake = self._delayed[0][0] if self._delayed else None
                break
            if not call.tries and self._resolve(call):
                resolved += 1
                continue
            largest = integer(f"{call.model.name[:80]}: largest_cost", call.model.largest_cost(call.text), 0, 1 << 53)
            misfit = self._misfit(call, largest)
            if misfit or now < self._next_send:
                (self._judging if call.asked else self._again).appendleft(call)
                if not misfit:
                    self._wake = self._next_send
                elif not self._flying:
                    self.exhausted = misfit
                break
            self._reserve(call, largest, now)
            calls.append(call)
        return calls

    def _resolve(self, call: Call) -> bool:
        """Pass on what ledger or cache know of a call, or have it wait for another one that asks the same."""
        number = self._store.answers.get(call.key)
        if number is not None:
            call.receive(self._store.answer(number), number)
        elif call.key in self._store.failures:
            call.receive(None, 0)
        elif call.key in self._waiting:
            self._waiting[call.key].append(call)
        else:
            answer = None if self._cache is None else self._cache.get(call.key)
            if answer is None:
                return False
            call.receive(answer, self._store.enter_cached(call.asked, call.key, answer))
        return True

    def _misfit(self, call: Call, largest: int) -> str:
        """Why the budget does not allow a call; of the attacked model also those that its answer leads to."""
        limits, store = self._limits, self._store
        calls = 1
        if not call.asked:
            calls += call.follow * (self._open + (not call.tries)) + len(self._judging)
        if limits.max_calls is not None and store.calls + calls > limits.max_calls:
            return f"{store.calls:,} of {limits.max_calls:,} calls are spent, and the next one takes {calls:,}"
        if limits.max_tokens is not None and store.tokens + largest > limits.max_tokens:
            return f"{store.tokens:,} of {limits.max_tokens:,} tokens are spent, and the next call may take {largest:,}"
        return ""

    def _reserve(self, call: Call, largest: int, now: float) -> None:
        """Enter a call into the ledger and the rates."""
        limits = self._limits
        call.reserved = largest
        call.number = self._store.reserve(call.asked, call.key, largest)
        if not call.tries:
            self._waiting[call.key] = []
            self._open += not call.asked
        call.tries += 1
        self._flying += 1
        pause = 0.0 if limits.calls_per_minute is None else 60 / limits.calls_per_minute
        if limits.tokens_per_minute is not None:
            pause = max(pause, 60 * largest / limits.tokens_per_minute)
        self._next_send = max(self._next_send, now) + pause if pause else self._next_send

    def _settle(self) -> None:
        """Enter what has arrived into the ledger, and pass it on."""
        while self._arrived:
            call, result, seconds = self._arrived[0]  # kept until it is entered, if an interrupt comes
            if isinstance(result, Answer):
                self._settle_answer(call, result, seconds)
            else:
                self._settle_error(call, result, seconds)
            self._flying -= 1
            self._arrived.popleft()

    def _settle_answer(self, call: Call, answer: Answer, seconds: float) -> None:
        self._store.settle(call.number, call.key, call.reserved, answer, seconds)
        if (answer.tokens or 0) > call.reserved:
            logger.warning(
                "%s: an answer took %s tokens, more than its largest cost of %s; the budget may be exceeded by those",
                call.model.name[:80],
                answer.tokens,
                call.reserved,
            )
        self._answering.add(call.asked)
        if self._cache is not None:
            self._fresh[call.key] = answer
        self._pass_on(call, answer)

    def _settle_error(self, call: Call, error: CallError, seconds: float) -> None:
        limits, asked_to_wait = self._limits, error.retry_after or 0.0
        hopeless = asked_to_wait > _LONGEST_WAIT_S
        final = not hopeless and not (error.retryable and call.tries <= limits.retries)
        self._store.settle_failed(call.number, call.key, call.reserved, error, seconds, final=final)
        now = time.monotonic()
        if hopeless:
            self._fatal = ModelError(
                f"{call.model.name[:80]}: the server asks to wait {asked_to_wait:.0f} s, longer than "
                f"{_LONGEST_WAIT_S:.0f} s; answers are kept: resume the run then"
            )
        elif not final:
            backoff = min(_LONGEST_BACKOFF_S, limits.backoff * 2.0 ** (call.tries - 1)) * random.uniform(0.5, 1.5)
            # After a time that the server named, calls that it refused together do not all return at once.
            wait = backoff if error.retry_after is None else asked_to_wait + random.uniform(0, 0.1) * backoff
            heapq.heappush(self._delayed, (now + wait, call.number, call))
            self._next_send = max(self._next_send, now + asked_to_wait)
        else:
            self._failures[call.asked] += 1
            failures = self._failures[call.asked]
            if limits.stop_after == failures and call.asked not in self._answering:
                self._fatal = ModelError(
                    f"{call.model.name[:80]}: {failures} calls failed and none was answered, the last with: "
                    f"{str(error)[:300]}; repair it and resume with retry_errors"
                )
            self._pass_on(call, None)

    def _pass_on(self, call: Call, answer: Answer | None) -> None:
        """Hand what came of a call to those that wait for it; once the run ends, its answer stays to be judged."""
        self._open -= not call.asked
        if self._ending:
            return
        for waiting in (call, *self._waiting.pop(call.key, ())):
            waiting.receive(answer, 0 if answer is None else call.number)

    def _commit(self) -> None:
        self._store.commit()
        if self._cache is not None and self._fresh:
            self._cache.put(self._fresh)
            self._fresh = {}

    def _finish(self, seconds: float) -> None:
        """Enter what arrives within some seconds, and commit it."""
        self._ending = True
        deadline = time.monotonic() + seconds
        try:
            self._settle()
            while self._flying and time.monotonic() < deadline:
                self._arrival.wait(deadline - time.monotonic())
                self._arrival.clear()
                self._settle()
        finally:
            self._commit()
