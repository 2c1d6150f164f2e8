"""The package `langchain-openai`: chat models and completions."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, Literal

from harness import CITIES, LONG, MODEL, PLAIN, PROMPT, TOO_LONG, TOOLS, Leaves, check, expect, main, refused_with
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

OPTIONS: dict[str, Any] = dict(model=MODEL, api_key="none", temperature=0, max_retries=0, timeout=300)
model = ChatOpenAI(base_url=PLAIN, max_tokens=8, **OPTIONS)
with_tools = ChatOpenAI(base_url=TOOLS, max_tokens=300, **OPTIONS)


class Place(BaseModel):
    """A place."""

    city: Literal["Oslo", "Rome"]


@tool
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@check
def chat() -> None:
    answer = model.invoke(PROMPT)
    expect(isinstance(answer.content, str), answer)
    expect(answer.response_metadata["finish_reason"] in ("stop", "length"), answer)
    expect(len(model.batch([PROMPT] * 4)) == 4, "the batch is incomplete")


@check
def stream() -> None:
    text = "".join(str(chunk.content) for chunk in model.stream(PROMPT))
    expect(text == model.invoke(PROMPT).content, text)


@check
def usage() -> None:
    found = reduce(add, model.stream(PROMPT, stream_usage=True)).usage_metadata
    expect(found and found["output_tokens"] > 0, found)


@check
def structured_output() -> None:
    for method in ("json_schema", "function_calling"):
        for strict in (None, True):
            place = with_tools.with_structured_output(Place, method=method, strict=strict).invoke(PROMPT)
            expect(isinstance(place, Place), (method, strict, place))


@check
def tools() -> None:
    called = with_tools.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).invoke(PROMPT)
    (call,) = called.tool_calls
    history = [HumanMessage(PROMPT), called, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    answer = with_tools.bind_tools([weather], tool_choice="none").invoke(history)
    expect(isinstance(answer.content, str) and not answer.tool_calls, answer)


@check
def streamed_tools() -> None:
    bound = with_tools.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    (call,) = reduce(add, bound.stream(PROMPT)).tool_calls
    expect(call["args"]["city"] in CITIES, call)


@check
def logprobs() -> None:
    answer = model.bind(logprobs=True, top_logprobs=2).invoke(PROMPT)
    expect(answer.response_metadata["logprobs"]["content"], answer)


@check
def completions() -> None:
    """12 prompts at once: it sends up to 20."""
    texts = OpenAI(base_url=PLAIN, max_tokens=2, **OPTIONS).generate([PROMPT] * 12).generations
    expect(len(texts) == 12, texts)


@check
def context_overflow() -> None:
    """Recognised as such, so that an agent can trim its history."""
    with refused_with(ContextOverflowError):
        model.invoke(TOO_LONG)


@check
def cancel() -> None:
    with Leaves():
        chunks = model.bind(max_tokens=LONG, extra_body={"min_tokens": LONG}).stream(PROMPT)
        next(chunks)
        chunks.close()


if __name__ == "__main__":
    main()
