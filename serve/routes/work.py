"""What a request asks for, from the queue to its counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import ParameterError, QueueError
from ...runtime.grammar.thinking import Thinking
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.state.statistics import Statistics
from ...runtime.tools.answer import AnswerReader
from ...runtime.tools.calls import CallReader
from ..engine.job import Job
from ..http.exchange import ClientGone
from ..service import Service
from ..wire.answers import Metrics, Usage, metrics_of, usage_of
from ..wire.calls import Calls
from ..wire.logprobs import Characters
from ..wire.requests import ChatRequest, CompletionRequest, Extension, StreamOptions
from .output import Output


@dataclass
class Work:
    """What a request asks for: prompts, one after the other, all with the same parameters except for their room. A
    prompt with several answers is there for each of them, with another seed.

    relaxed: names of the tools, or the field, whose schemas cannot be enforced as they are.
    """

    service: Service
    request: ChatRequest | CompletionRequest
    prompts: list[list[int]]
    parameters: list[SamplingParameters]
    key: str
    calls: Calls | None = None
    thinking: Thinking | None = None
    relaxed: list[str] = field(default_factory=list)
    echoes: list[str] = field(default_factory=list)  # the prompts' texts, where answers begin with them
    outputs: list[Output] = field(default_factory=list)
    job: Job | None = None  # the job that waits or runs
    refused: bool = False  # whether the queue had no place for the last prompt
    counted: bool = False  # whether the last prompt is in the metrics of those that ended

    @property
    def extension(self) -> Extension:
        return self.request.specexport or Extension()

    def leave(self) -> None:
        if self.job is not None:
            self.job.leave()

    def characters(self, index: int) -> Characters:
        return Characters.after(self.service.texts, self.prompts[index], self.parameters[index])

    @contextmanager
    def output(self, index: int) -> Iterator[Output]:
        """The prompt's job in the queue; counted and removed at the end, however that comes."""
        sessions, again = self.service.sessions, index > 0
        self.refused, self.counted = True, False
        job = sessions.submit(self.prompts[index], self.parameters[index], key=self.key, again=again)
        self.job, self.refused = job, False
        asked = self.calls
        calls = None if asked is None else CallReader(asked.form, asked.bounded, asked.demanded)
        reader = None if calls is None and self.thinking is None else AnswerReader(self.thinking, calls)
        # Who scores texts, such as lm-eval, cuts off the entry of the one token after it, also of a stop token.
        output = Output(
            self.service, job, self.characters(index), bool(self.extension.show_drafts), reader, bool(self.echoes)
        )
        self.outputs.append(output)
        begun = True
        try:
            yield output
        except (ClientGone, GeneratorExit):
            raise
        except Exception as error:
            begun = bool(output.rounds)
            output.finish_reason = "error"
            if not begun and isinstance(error, QueueError | ParameterError):
                output.finish_reason = "refused"
            raise
        finally:
            job.leave()
            if begun:  # what fails before its first token is counted where errors become answers
                output.count()
                self.counted = True

    @property
    def statistics(self) -> tuple[Statistics, ...]:
        return tuple(output.statistics for output in self.outputs if output.statistics is not None)

    @property
    def usage(self) -> Usage:
        thought = sum(output.thought for output in self.outputs)
        return usage_of(*self.statistics, thought=thought, answers=self.request.n or 1)

    @property
    def metrics(self) -> Metrics:
        return metrics_of(self.statistics, self.queue_seconds, self.service.session.max_draft_tokens)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream's client asked for it, at the end."""
        return bool((self.request.stream_options or StreamOptions()).include_usage)

    @property
    def queue_seconds(self) -> float:
        return sum(output.job.queue_seconds for output in self.outputs)

    @property
    def log_fields(self) -> dict[str, object]:
        """What the log says of it."""
        rows, prompts = self.statistics, self.statistics[:: self.request.n or 1]
        reasons = [output.finish_reason for output in self.outputs] + ["refused"] * self.refused
        return {
            "prompt_tokens": sum(row.prompt_tokens for row in prompts),
            "cached_tokens": sum(row.reused_tokens for row in prompts),
            "completion_tokens": sum(row.emitted for row in rows),
            "finish_reason": ",".join(reasons) or "abort",  # if it left before its first prompt's turn
            "queue_seconds": round(self.queue_seconds, 4),
            "first_token_seconds": round(sum(row.first_token_seconds for row in rows[:1]), 4),
        }
