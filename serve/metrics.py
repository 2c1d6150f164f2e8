"""The metrics at `/metrics`: vLLM's names after a prefix, so that dashboards for vLLM fit.

Gauges are computed when they are read, without the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ..runtime.state.statistics import Statistics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
ROUND = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
OTHER_ROUTES = "default"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Described(NamedTuple):
    """A metric: its name without the prefix, and its labels beside `model_name`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


class _Total(Collector):
    """A counter that something else keeps."""

    def __init__(self, name: str, help: str, model: str, value: Callable[[], float]) -> None:
        self._name, self._help, self._labels, self._value = name, help, [model], value

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._help, labels=["model_name"])
        family.add_metric(self._labels, self._value())
        return [family]


class Metrics:
    """Has a registry of its own, so that several apps can live in one process. routes: those that the policy knows.

    described: all of it, for docs/http.md.
    """

    def __init__(self, prefix: str, model: str, routes: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Described] = []
        self._prefix, self._model, self._routes = prefix, model, frozenset(routes)
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts that were answered.")
        self._generated = self._counter("generation_tokens", "Tokens generated.")
        self._success = self._counter("request_success", "Requests that ended.", "finished_reason")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked for in the cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens whose cache rows were reused.")
        self._rejected = self._counter("request_rejected", "Requests that were refused.", "code")
        self._ignored = self._counter("ignored_fields", "Fields of requests that were ignored.")
        self._looked_up = self._counter("spec_decode_looked_up_tokens", "Draft tokens that were looked up.")
        self._by_drafter = self._counter(
            "spec_decode_num_drafts_by_drafter", "Rounds that drafted, by drafter.", "drafter"
        )
        self._drafts = self._counter("spec_decode_num_drafts", "Rounds that drafted.", "route")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens.", "route")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", "route")
        self._by_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position.", "route", "position"
        )
        self.first_token = self._histogram("time_to_first_token_seconds", "Time from the request to its first token.")
        self.between_tokens = self._histogram(
            "inter_token_latency_seconds",
            "A round's time divided by its tokens, once per token, from the second round on.",
        )
        self.whole = self._histogram("e2e_request_latency_seconds", "Time from the request to its end.")
        self.queued = self._histogram("request_queue_time_seconds", "Time spent waiting for the engine.")
        self.prefill = self._histogram("request_prefill_time_seconds", "Time spent on prompts.")
        self.decode = self._histogram("request_decode_time_seconds", "Time spent on rounds.")
        self.compiled = self._histogram(
            "grammar_compile_seconds", "Time until a request's grammar was compiled or refused."
        )
        self.masked = self._histogram("grammar_mask_seconds", "Time a request's grammar took during generation.")
        self.prompt_size = self._histogram("request_prompt_tokens", "Tokens per prompt.", TOKENS)
        self.output_size = self._histogram("request_generation_tokens", "Tokens per answer.", TOKENS)
        self.round_size = self._histogram("iteration_tokens_total", "Tokens per round.", ROUND)

    def watch(self, running: Callable[[], float], waiting: Callable[[], float], usage: Callable[[], float]) -> None:
        """usage: of the cache, 0 to 1."""
        self._gauge("num_requests_running", "Requests being processed.", running)
        self._gauge("num_requests_waiting", "Requests in the queue.", waiting)
        self._gauge("kv_cache_usage_perc", "Share of the cache rows in use.", usage)

    def watch_log(self, dropped: Callable[[], float]) -> None:
        name, help = "log_lines_dropped", "Log lines dropped because nobody read them."
        self.described.append(Described(f"{name}_total", "counter", help))
        self.registry.register(_Total(f"{self._prefix}:{name}", help, self._model, dropped))

    def info(self, version: str, engine: str, bundle: str) -> None:
        labels, help = {"version": version, "engine": engine, "bundle": bundle}, "Version, engine and bundle."
        self.described.append(Described("build_info", "gauge", help, tuple(labels)))
        Info(f"{self._prefix}:build", help, registry=self.registry).info(labels)

    def _gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        self.described.append(Described(name, "gauge", help))
        gauge = Gauge(f"{self._prefix}:{name}", help, ["model_name"], registry=self.registry)
        gauge.labels(self._model).set_function(value)

    def rejected(self, code: str) -> None:
        self._rejected.labels(self._model, code).inc()

    def ignored(self, count: int) -> None:
        self._ignored.labels(self._model).inc(count)

    def round(self, tokens: int) -> None:
        self.observe(self.round_size, tokens)

    def latencies(self, rounds: Sequence[tuple[float, int]]) -> None:
        """rounds: the seconds and tokens of each round of a request; those of the first one belong to `first_token`."""
        for seconds, tokens in rounds[1:]:
            for _ in range(tokens):
                self.observe(self.between_tokens, seconds / tokens)

    def observe(self, histogram: Histogram, value: float) -> None:
        histogram.labels(self._model).observe(value)

    def finished(self, row: Statistics | None, reason: str, route: str | None, waited: tuple[float, float]) -> None:
        """waited: seconds in the queue, and in all. row: None where not even a first round came."""
        self._success.labels(self._model, reason).inc()
        self.observe(self.queued, waited[0])
        self.observe(self.whole, waited[1])
        if row is None:
            return
        for counter, value in (
            (self._prompt, row.prompt_tokens),
            (self._generated, row.emitted),
            (self._queries, row.prompt_tokens),
            (self._hits, row.reused_tokens),
            (self._looked_up, row.looked_up),
        ):
            counter.labels(self._model).inc(value)
        self.observe(self.prompt_size, row.prompt_tokens)
        self.observe(self.output_size, row.emitted)
        self.observe(self.prefill, row.prefill_seconds)
        self.observe(self.decode, max(row.decode_seconds, 0.0))
        self.observe(self.first_token, waited[0] + row.first_token_seconds)
        if row.grammar_seconds:
            self.observe(self.masked, row.grammar_seconds)
        self._speculative(row, route if route in self._routes else OTHER_ROUTES)

    def _speculative(self, row: Statistics, route: str) -> None:
        labels = (self._model, route)
        self._drafts.labels(*labels).inc(row.drafted_by_position[0] if row.drafted_by_position else 0)
        self._drafted.labels(*labels).inc(row.drafted)
        self._accepted.labels(*labels).inc(row.accepted)
        for name, count in row.rounds_by_drafter.items():
            self._by_drafter.labels(self._model, name).inc(count)
        for place, count in enumerate(row.accepted_by_position):
            self._by_position.labels(*labels, str(place)).inc(count)

    def exposition(self) -> bytes:
        """In the format of `TEXT`, which every scraper reads. In OpenMetrics prometheus_client writes samples with
        another name than their metadata: an underscore for the colon (prometheus/client_python#1177).
        """
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        self.described.append(Described(f"{name}_total", "counter", help, labels))
        counter = Counter(f"{self._prefix}:{name}", help, ["model_name", *labels], registry=self.registry)
        if not labels:
            counter.labels(self._model)  # 0 from the start
        return counter

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        self.described.append(Described(name, "histogram", help))
        return Histogram(f"{self._prefix}:{name}", help, ["model_name"], buckets=buckets, registry=self.registry)
