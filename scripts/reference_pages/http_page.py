"""docs/http.md, from the structs of requests, the table of error codes, the metrics and the settings of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby

import msgspec
from msgspec import inspect
from specexport.serve.metrics import Described, Metrics
from specexport.serve.settings import ServerSettings, flag_of
from specexport.serve.wire.errors import CODES
from specexport.serve.wire.requests import ChatRequest, Common, CompletionRequest, Extension, Sampling
from specexport.serve.wire.responses.requests import ResponsesRequest

from .markdown import table, wrap

INTRODUCTION = """\
# HTTP reference

For clients and operators of `specexport serve`: fields, error codes, metrics and settings. How to use them:
[serve.md](serve.md). Written by `scripts/write_reference` from the code; do not edit.

## Fields of requests

`/openapi.json` has the other paths, and types and limits, also of nested fields.
"""
# The struct, what its own fields belong to, and the struct whose fields are listed before.
REQUESTS: tuple[tuple[type[msgspec.Struct], str, type[msgspec.Struct] | None], ...] = (
    (Sampling, "Chat, completions and Responses", None),
    (Common, "Chat and completions", Sampling),
    (ChatRequest, "Chat", Common),
    (CompletionRequest, "Completions", Common),
    (ResponsesRequest, "Responses", Sampling),
    (Extension, "The object `specexport`", None),
)
METRICS = """\
## Metrics

Names begin with `specexport:`, or the value of `--metrics-prefix`. All except `build_info` have the label `model_name`;
other labels are in braces.
"""
SETTINGS = """\
## Settings of `create_app`

Keywords of `ServerSettings` are these [options of `specexport serve`](cli.md#specexport-serve): """


def described(kind: type[msgspec.Struct], base: type[msgspec.Struct] | None) -> Iterator[tuple[str, str]]:
    """(name, description) of each field that is not of `base`."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    for field in found.fields:
        if base is None or field.name not in base.__struct_fields__:
            assert isinstance(field.type, inspect.Metadata), f"{kind.__name__}.{field.name} has no description"
            yield field.encode_name, (field.type.extra_json_schema or {})["description"]


def requests() -> Iterator[str]:
    known: set[tuple[str, str]] = set()
    for kind, title, base in REQUESTS:
        found = list(described(kind, base))
        rows = []
        for text, same in groupby((one for one in found if one not in known), key=lambda one: one[1]):
            rows.append((", ".join(f"`{name}`" for name, _ in same), text))
        if repeated := [f"`{name}`" for name, text in found if (name, text) in known]:
            rows.append((", ".join(repeated), "as above"))
        known.update(found)
        yield f"### {title}\n\n" + table(("field", "meaning"), rows)


def codes() -> str:
    rows = []
    for status, group in groupby(sorted(CODES.items(), key=lambda one: one[1][0]), key=lambda one: one[1][0]):
        rows.append((str(status), "; ".join(f"`{code}`" + (f": {text}" if text else "") for code, (_, text) in group)))
    return "## Error codes\n\n" + table(("status", "codes"), rows)


def known_metrics() -> list[Described]:
    """Those of `specexport serve`."""
    found = Metrics("specexport", "", ())
    found.watch(int, int, int)
    found.watch_log(int)
    found.info("", "", "")
    return found.described


def metrics() -> Iterator[str]:
    yield METRICS.rstrip()
    for kind in ("gauge", "counter", "histogram"):
        yield f"{kind.capitalize()}s:\n\n" + bullets(one for one in known_metrics() if one.kind == kind)


def bullets(several: Iterable[Described]) -> str:
    lines = []
    for one in several:
        labels = f" {{{', '.join(one.labels)}}}" if one.labels else ""
        lines.append(f"- `{one.name}`{labels}: {one.help}")
    return "\n".join(lines)


def settings() -> str:
    known = fields(ServerSettings)
    renamed = [
        f"`{one.name}{'=False' * (one.default is True)}` is `{flag}`"
        for one in known
        if (flag := flag_of(one)) not in ("", plain(one.name))
    ]
    rows = [(f"`{one.name}`", f"`{one.default}`", one.metadata["help"]) for one in known if not flag_of(one)]
    alike = [f"`{one.name}`" for one in known if flag_of(one) == plain(one.name)]
    names = f"{SETTINGS}{', '.join([*alike, *renamed])} (repeatable ones are tuples), and these, which have none:"
    heading, _, text = names.partition("\n\n")
    return "\n\n".join([heading, wrap(text), table(("keyword", "default", "meaning"), rows)])


def plain(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def render() -> str:
    return "\n\n".join([INTRODUCTION.rstrip(), *requests(), codes(), *metrics(), settings()]) + "\n"
