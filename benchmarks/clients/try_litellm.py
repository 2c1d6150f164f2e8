"""The package `litellm`, by its providers for servers that speak OpenAI's API."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import litellm
from harness import (
    CALLED,
    CITIES,
    LONG,
    MESSAGES,
    MODEL,
    PLACE,
    PLAIN,
    TOO_LONG,
    TOOLS,
    Leaves,
    calls_and_answers,
    check,
    expect,
    main,
    refused_with,
    streams_the_answer,
)
from pydantic import BaseModel

litellm.suppress_debug_info = True


class Place(BaseModel):
    city: str


def ask(**fields: Any) -> Any:
    asked = dict(model=f"openai/{MODEL}", api_base=PLAIN, api_key="none", messages=MESSAGES, temperature=0, timeout=300)
    return litellm.completion(**(asked | {"max_tokens": 8, "num_retries": 0} | fields))


@check
def chat() -> None:
    for provider in ("openai", "hosted_vllm", "lm_studio", "llamafile", "custom_openai"):
        choice = ask(model=f"{provider}/{MODEL}").choices[0]
        expect(isinstance(choice.message.content, str) and choice.finish_reason in ("stop", "length"), choice)


@check
def stream() -> None:
    streams_the_answer(ask)


@check
def usage() -> None:
    found = [getattr(chunk, "usage", None) for chunk in ask(stream=True, stream_options={"include_usage": True})]
    expect(found[-1] and found[-1].completion_tokens > 0, found)


@check
def structured_output() -> None:
    schema = {"name": "place", "schema": PLACE, "strict": True}
    answer = ask(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=300)
    expect(Place.model_validate_json(answer.choices[0].message.content).city in CITIES, answer)


@check
def tools() -> None:
    calls_and_answers(partial(ask, api_base=TOOLS))


@check
def streamed_tools() -> None:
    whole = litellm.stream_chunk_builder(list(ask(**CALLED, api_base=TOOLS, stream=True)))
    (call,) = whole.choices[0].message.tool_calls
    expect(json.loads(call.function.arguments)["city"] in CITIES, call)


@check
def completions() -> None:
    asked: dict[str, Any] = dict(api_base=PLAIN, api_key="none", prompt="The sky is", max_tokens=2, temperature=0)
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", logprobs=1, **asked)
    expect(answer.choices[0].logprobs.token_logprobs, answer)


@check
def responses() -> None:
    asked: dict[str, Any] = dict(model=f"openai/{MODEL}", api_base=PLAIN, api_key="none", input=MESSAGES[0]["content"])
    asked |= dict(temperature=0, max_output_tokens=8)
    whole = litellm.responses(**asked)
    *_, last = litellm.responses(**asked, stream=True)
    expect(last.response.output[0].content[0].text == whole.output[0].content[0].text, last)


@check
def models() -> None:
    found = litellm.get_valid_models(
        custom_llm_provider="hosted_vllm", check_provider_endpoint=True, api_key="none", api_base=PLAIN
    )
    expect(any(name.endswith(MODEL) for name in found), found)


@check
def errors() -> None:
    with refused_with(litellm.NotFoundError):
        ask(model="openai/unknown")
    with refused_with(litellm.BadRequestError):
        ask(frequency_penalty=3)


@check
def context_overflow() -> None:
    """Recognised as such, so that its fallbacks to longer contexts work."""
    with refused_with(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": TOO_LONG}])


@check
def cancel() -> None:
    with Leaves():
        chunks = ask(stream=True, max_tokens=LONG, extra_body={"min_tokens": LONG})
        next(chunks)
        chunks.completion_stream.close()


if __name__ == "__main__":
    main()
