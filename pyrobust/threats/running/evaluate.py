"""Run a threat against a model, and judge its answers."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pyrobust.checks import file_path, flag, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.runs.identity import software_versions
from pyrobust.runs.progress_bar import progress_bar
from pyrobust.runs.reader import Header
from pyrobust.threats.models import Answer, CallError, FunctionModel, TextModel
from pyrobust.threats.models.sampling import as_unicode
from pyrobust.threats.running.cache import AnswerCache
from pyrobust.threats.running.calls import MOST_CALLS, Call, Caller, CallLimits
from pyrobust.threats.running.judges import Judge, Judgement, ModelJudge, Opinion, as_judge
from pyrobust.threats.running.prompts import Threat, ThreatPrompt
from pyrobust.threats.running.read import read_stored, read_threat_run
from pyrobust.threats.running.store import ThreatStore
from pyrobust.threats.running.workers import ModelWorkers, computing_models
from pyrobust.threats.verdicts import ThreatVerdicts
from pyrobust.workers.executors import Executor

logger = logging.getLogger(__name__)

#: What ``evaluate_threat`` takes as a judge: one, a rule's name, or a function from prompt and answer to an opinion.
JudgeLike: TypeAlias = Judge | str | Callable[[ThreatPrompt, str], Opinion]
#: What it takes as a model: one, or a function from prompts to answers.
ModelLike: TypeAlias = TextModel | Callable[[str], str]


@dataclass(frozen=True)
class ThreatProgress:
    """Progress of a threat run.

    Attributes:
        done: attempts with a verdict, those of earlier starts included, or without one for good.
        total: attempts of the run.
        failed: those of ``done`` without a verdict.
        calls, tokens: spent so far.
    """

    done: int
    total: int
    failed: int
    calls: int
    tokens: int

    @property
    def summary(self) -> str:
        """Short text with what is spent.

        >>> ThreatProgress(8, 20, 1, 9, 1234).summary
        '9 calls, 1,234 tokens, failed: 1'
        """
        return f"{self.calls:,} calls, {self.tokens:,} tokens" + (f", failed: {self.failed:,}" if self.failed else "")


#: Receives the progress of a run.
Report: TypeAlias = Callable[[ThreatProgress], None]


def evaluate_threat(
    model: ModelLike,
    threat: Threat | Sequence[str | Mapping[str, Any] | ThreatPrompt],
    judge: JudgeLike,
    *,
    out: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    limits: CallLimits | None = None,
    retry_errors: bool = False,
    progress: bool | Report = False,
    executor: Executor = None,
) -> ThreatVerdicts:
    """Send each prompt of a threat to a model, as often as it has attempts, and judge the answers.

    Every call is written to the run before it is sent, at its largest cost, and every answer whole. Killed at any time,
    the run is resumed by the same call: nothing answered is asked again, and lost calls stay spent. Verdicts do not
    depend on order or concurrency if those of model and judge do not.

    Args:
        model: a model, or a function from prompts to answers, which several threads call.
        threat: the prompts.
        judge: a rule's name or a function (``rule_judge``), or a ``ModelJudge``.
        out: file of the run; an existing run of the same model, prompts and judge is resumed. None keeps it in memory.
        cache: file of answers that runs share, by model with its settings, prompt and attempt; None for none.
        limits: budget, rates, concurrency and retries; by default eight calls at once without a limit.
        retry_errors: whether calls and judgements that failed in earlier starts are tried again.
        progress: True for a bar on standard error; or a function of ``ThreatProgress``.
        executor: where models other than endpoints compute: None for this process; "cpu:N", "all", "0,1" or a list of
            devices for a process each; "ray", "ray://HOST" or a ``RayCluster`` for actors of a cluster. Each worker
            holds its own copy of the models of run and judge and answers one call at a time; at least two calls a
            worker are under way, whatever ``limits`` say. The call of a worker that dies is spent and, like one whose
            connection was lost, tried again.

    Returns:
        ThreatVerdicts, one for each attempt and judge. Where the budget did not suffice, status is "unsubmitted".

    Raises:
        InputError: an argument is out of range, or a judge needs targets that prompts lack.
        InputTypeError: an argument of another type.
        StoreError: the file holds another run, is in use, or cannot be written.
        ModelError: the first calls fail without exception, or a server asks to wait too long.
        WorkerError: workers cannot be started or die as they start, or hold another model.
        MissingExtraError: Ray is not installed.
        FileFormatError: the file of run or cache is damaged or of another kind.

    >>> verdicts = evaluate_threat(str.upper, ["say hi", "say no"], "contains:HI")
    >>> verdicts.column("success"), verdicts.column("status")
    ([True, False], ['judged', 'judged'])
    """
    model = _as_model(model)
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    judge = as_judge(judge)
    flag("retry_errors", retry_errors)
    path = None if out is None else file_path("out", out)
    _check_targets(threat, judge)
    computing_models(executor, model, judge)
    start = run_header(model, threat, judge), threat
    with contextlib.ExitStack() as stack:
        shared = None if cache is None else stack.enter_context(_open_cache(cache, path))
        store = stack.enter_context(ThreatStore(path, judge, start))
        return _fill(store, model, judge, limits or CallLimits(), shared, retry_errors, progress, executor)


def rejudge_threat(
    run: str | os.PathLike[str],
    judge: JudgeLike,
    *,
    cache: str | os.PathLike[str] | None = None,
    limits: CallLimits | None = None,
    retry_errors: bool = False,
    progress: bool | Report = False,
    executor: Executor = None,
) -> ThreatVerdicts:
    """Have another judge judge the answers of a run; the attacked model is not asked.

    The verdicts are added to the run. The budget is that of the run, over all its calls.

    Args:
        run: file of ``evaluate_threat``.
        judge: as in ``evaluate_threat``, whose other arguments these are, too.
        cache: file of answers that runs share.
        limits: budget, rates, concurrency and retries.
        retry_errors: whether judgements that failed in earlier starts are tried again.
        progress: True for a bar on standard error; or a function of ``ThreatProgress``.
        executor: where the judge's model computes.

    Returns:
        ThreatVerdicts of all judges; ``verdicts.where(judge=...)`` or ``judge=`` of the rates chooses one.

    Raises:
        FileFormatError: the file is missing, damaged or of another kind.
        InputError, InputTypeError, StoreError, ModelError, WorkerError: as in ``evaluate_threat``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "run.db")
    ...     _ = evaluate_threat(str.upper, ["say hi"], "contains:HI", out=file)
    ...     rejudge_threat(file, "refusal").column("success")
    [True, True]
    """
    path = file_path("run", run)
    judge = as_judge(judge)
    flag("retry_errors", retry_errors)
    _check_targets(read_threat_run(path).threat, judge)
    computing_models(executor, None, judge)
    with contextlib.ExitStack() as stack:
        shared = None if cache is None else stack.enter_context(_open_cache(cache, path))
        store = stack.enter_context(ThreatStore(path, judge))
        return _fill(store, None, judge, limits or CallLimits(), shared, retry_errors, progress, executor)


def run_header(model: TextModel, threat: Threat, judge: Judge) -> Header:
    """The header of a run."""
    return Header(
        kind="threat",
        parameters={"attempts": threat.attempts, "prompts": len(threat.prompts), "judge": judge.name},
        model=model.name,
        model_sha256="",
        data=as_unicode(threat.source),
        data_sha256=threat.sha256,
        guarantee="empirical",
        versions=software_versions(),
    )


@dataclass(frozen=True)
class ThreatCost:
    """The largest cost of a threat run, without retries.

    Attributes:
        calls: calls of the attacked model.
        tokens: largest cost of those.
        judge_calls: calls of the judge's model.
        judge_tokens: largest cost of those if all answers were empty; each answer adds its own tokens.
    """

    calls: int
    tokens: int
    judge_calls: int
    judge_tokens: int


def threat_cost(model: ModelLike, threat: Threat, judge: JudgeLike) -> ThreatCost:
    """Compute the largest cost of a run; nothing is sent.

    Args:
        model: as in ``evaluate_threat``.
        threat: the prompts.
        judge: as in ``evaluate_threat``.

    Returns:
        ThreatCost.

    >>> threat_cost(str.upper, Threat(["a", "b"], attempts=3), "refusal").calls
    6
    """
    model, judge = _as_model(model), as_judge(judge)
    _check_targets(threat, judge)
    tokens = threat.attempts * sum(model.largest_cost(row.prompt) for row in threat.prompts)
    if not isinstance(judge, ModelJudge):
        return ThreatCost(len(threat), tokens, 0, 0)
    asked = threat.attempts * sum(judge.model.largest_cost(judge.question(row, "")) for row in threat.prompts)
    return ThreatCost(len(threat), tokens, len(threat), asked)


def _fill(
    store: ThreatStore,
    model: TextModel | None,
    judge: Judge,
    limits: CallLimits,
    cache: AnswerCache | None,
    retry_errors: bool,
    progress: bool | Report,
    executor: Executor,
) -> ThreatVerdicts:
    """Make the calls that a run lacks, those of the judge alone without a model, and read its verdicts."""
    work = _Work(store, model, judge, retry_errors)
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(reporting(progress))
        if executor is not None and not work.complete:
            workers = stack.enter_context(ModelWorkers(executor, computing_models(executor, model, judge)))
            work.compute_on(workers)
            limits = replace(limits, concurrency=min(max(limits.concurrency, 2 * len(workers)), MOST_CALLS))
        caller = Caller(store, limits, cache, lambda: report(work.progress()))
        caller.run(work.calls(caller))
    if caller.exhausted:
        logger.warning("budget used up: %s; resume the run with a larger one", caller.exhausted)
    stored = read_stored(store.connection, store.where, store.run.threat)
    assert stored is not None
    return stored.verdicts


class _StoredAnswers:
    """Stands for the attacked model of a run where only its answers are judged."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, prompt: str, attempt: int) -> Answer:
        raise CallError("the model is not asked again")

    def largest_cost(self, prompt: str) -> int:
        return 0


class _Work:
    """The missing calls of a run, and the verdicts on their answers."""

    def __init__(self, store: ThreatStore, model: TextModel | None, judge: Judge, retry_errors: bool) -> None:
        self._store, self._judge = store, judge
        self._model = model or _StoredAnswers(store.run.header.model)
        self._asks = model is not None
        self._threat = store.run.threat
        self._keys = store.run.keys
        if retry_errors:
            store.failures.clear()
            for item in [item for item, status in store.statuses.items() if status == "error"]:
                del store.statuses[item]
        self._done = len(store.statuses)
        self._failed = sum(status != "judged" for status in store.statuses.values())

    @property
    def complete(self) -> bool:
        """Whether every attempt has a verdict, or failed for good."""
        store = self._store
        return all(item in store.statuses or key in store.failures for item, key in enumerate(self._keys))

    def compute_on(self, workers: ModelWorkers) -> None:
        """Have workers compute the models that they hold."""
        self._model = workers.serve(self._model)
        if isinstance(self._judge, ModelJudge):
            self._judge = replace(self._judge, model=workers.serve(self._judge.model))

    def progress(self) -> ThreatProgress:
        store = self._store
        return ThreatProgress(self._done, len(self._threat), self._failed, store.calls, store.tokens)

    def calls(self, caller: Caller) -> Iterator[Call]:
        """The attacked model's call for each attempt without a verdict, in order; known answers cost nothing."""
        attempts, first = self._threat.attempts, self._threat.attempt_numbers()
        for item, key in enumerate(self._keys):
            if item in self._store.statuses or not (self._asks or key in self._store.answers):
                continue
            place, attempt = divmod(item, attempts)
            prompt = self._threat.prompts[place]
            receive = partial(self._answered, caller, item, prompt)
            follow = int(isinstance(self._judge, ModelJudge))
            yield Call(self._model, 0, prompt.prompt, first[place] + attempt, receive, follow)

    def _answered(self, caller: Caller, item: int, prompt: ThreatPrompt, answer: Answer | None, number: int) -> None:
        if answer is None:
            self._done += 1
            self._failed += 1
        elif isinstance(self._judge, ModelJudge):
            question = self._judge.question(prompt, answer.text)
            receive = partial(self._replied, item, self._judge)
            caller.submit(Call(self._judge.model, 1 + self._store.judge_number, question, 0, receive))
        else:
            self._enter(item, self._judge(prompt, answer.text))

    def _replied(self, item: int, judge: ModelJudge, reply: Answer | None, number: int) -> None:
        if reply is None:
            self._enter(item, Judgement("error", error="the judge's call failed"))
        else:
            self._enter(item, judge.parse(reply.text), number)

    def _enter(self, item: int, judgement: Judgement, number: int | None = None) -> None:
        self._store.judge(item, judgement, number)
        self._done += 1
        self._failed += judgement.success is None


@contextlib.contextmanager
def reporting(progress: bool | Report) -> Iterator[Report]:
    """Interpret ``progress=``: False for none, True for a bar on standard error, or a function."""
    if callable(progress):
        yield progress
    elif flag("progress", progress):
        with progress_bar("attempts") as show:
            yield lambda now: show(now.done, now.done, now.total, now.summary)
    else:
        yield lambda now: None


def _as_model(model: Any) -> TextModel:
    """A model from a model or a function."""
    if isinstance(model, type) or not (isinstance(model, TextModel) or callable(model)):
        raise InputTypeError(f"model: expected a TextModel or a function, got {shown(model)}; see text_model")
    made: TextModel = model if isinstance(model, TextModel) else FunctionModel(model)
    if not isinstance(made.name, str) or not made.name or as_unicode(made.name) != made.name:
        raise InputTypeError(f"model: expected a name that is text in Unicode, got {shown(made.name)}")
    return made


def _check_targets(threat: Threat, judge: Judge) -> None:
    """Raise InputError if a judge compares with targets and a prompt has none."""
    if judge.needs_target:
        for row in threat.prompts:
            if not row.target:
                raise InputError(
                    f"judge: {judge.name}: expected a target for each prompt, got none for id {row.id!r}; add a "
                    "column target"
                )


def _open_cache(cache: str | os.PathLike[str], run: Path | None) -> AnswerCache:
    """Open a cache, which must not be the run itself."""
    path = file_path("cache", cache)
    if run is not None and os.path.realpath(path) == os.path.realpath(run):
        raise InputError(f"cache: expected a file other than the run, got {str(path)!r}")
    return AnswerCache(path)
