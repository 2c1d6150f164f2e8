"""The package `litellm`, by its providers for servers that speak OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import litellm
from harness import (
    CITIES,
    LONG,
    MESSAGES,
    MODEL,
    PLACE,
    PLAIN,
    TOO_LONG,
    TOOLS,
    WEATHER,
    Leaves,
    check,
    expect,
    main,
    refused_with,
)
from pydantic import BaseModel

litellm.suppress_debug_info = True
CALLED: dict[str, Any] = dict(
    api_base=TOOLS, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=300
)


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
    text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True))
    expect(text == ask().choices[0].message.content, text)


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
    message = ask(**CALLED).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    choice = ask(**(CALLED | dict(messages=[*MESSAGES, message, *results], tool_choice="none"))).choices[0]
    expect(isinstance(choice.message.content, str), choice)


@check
def streamed_tools() -> None:
    whole = litellm.stream_chunk_builder(list(ask(**CALLED, stream=True)))
    (call,) = whole.choices[0].message.tool_calls
    expect(json.loads(call.function.arguments)["city"] in CITIES, call)


@check
def completions() -> None:
    asked: dict[str, Any] = dict(api_base=PLAIN, api_key="none", prompt="The sky is", max_tokens=2, temperature=0)
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", logprobs=1, **asked)
    expect(answer.choices[0].logprobs.token_logprobs, answer)


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
