"""The package `openai`, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, Literal

import openai
from harness import (
    ANOTHER_NAME,
    CALLED,
    CITIES,
    LONG,
    MESSAGES,
    MODEL,
    PLAIN,
    PROMPT,
    TOO_LONG,
    TOOLS,
    WEATHER,
    Leaves,
    calls_and_answers,
    check,
    expect,
    main,
    refused_with,
    streams_the_answer,
)
from pydantic import BaseModel

OPTIONS: dict[str, Any] = dict(api_key="none", max_retries=0, timeout=300)
plain = openai.OpenAI(base_url=PLAIN, **OPTIONS)
with_tools = openai.OpenAI(base_url=TOOLS, **OPTIONS)
ASKED: dict[str, Any] = dict(model=MODEL, messages=MESSAGES, temperature=0)


class Place(BaseModel):
    city: Literal["Oslo", "Rome"]
    warm: bool


def ask(client: openai.OpenAI = plain, **fields: Any) -> Any:
    return client.chat.completions.create(**(ASKED | {"max_tokens": 8} | fields))


@check
def chat() -> None:
    answer = ask()
    expect(isinstance(answer.choices[0].message.content, str), answer)
    expect(answer.choices[0].finish_reason in ("stop", "length"), answer)
    expect(answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage)
    expect(answer._request_id, "no request id")


@check
def stream() -> None:
    streams_the_answer(ask)


@check
def usage() -> None:
    *others, last = ask(stream=True, stream_options={"include_usage": True})
    expect(last.usage.completion_tokens > 0 and not last.choices, last)
    expect(all(chunk.usage is None for chunk in others), others)


@check
def structured_output() -> None:
    asked = ASKED | {"max_tokens": 300, "response_format": Place}
    expect(isinstance(plain.chat.completions.parse(**asked).choices[0].message.parsed, Place), "no place")
    with plain.chat.completions.stream(**asked) as events:
        expect(isinstance(events.get_final_completion().choices[0].message.parsed, Place), "no place in the stream")


@check
def loose_schema() -> None:
    """What cannot be enforced is relaxed, unless it is strict: pydantic writes `uniqueItems` for a set."""
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True, "maxItems": 2}}}
    for strict in ({}, {"strict": False}):
        asked = {"type": "json_schema", "json_schema": {"name": "tags", "schema": schema, **strict}}
        expect(ask(response_format=asked).choices, "no choices")


@check
def tools() -> None:
    calls_and_answers(partial(ask, with_tools))


@check
def tools_or_schema() -> None:
    """The model chooses: a call, or an answer in the schema."""
    tool = openai.pydantic_function_tool(Place, name="weather")
    asked: dict[str, Any] = ASKED | dict(tools=[tool], parallel_tool_calls=False, max_tokens=300)
    message = with_tools.chat.completions.parse(**asked, response_format=Place).choices[0].message
    found = message.tool_calls[0].function.parsed_arguments if message.tool_calls else message.parsed
    expect(isinstance(found, Place), message)


@check
def streamed_tools() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    asked = ASKED | CALLED | {"tool_choice": named}
    with with_tools.chat.completions.stream(**asked) as events:
        kinds = {event.type for event in events}
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    expect("tool_calls.function.arguments.done" in kinds, kinds)
    expect(json.loads(call.function.arguments)["city"] in CITIES, call)


@check
def unfinished_calls() -> None:
    """A history whose call was cut off, or has no arguments, is answered."""
    for arguments in ('{"city": "Os', ""):
        function = {"name": "weather", "arguments": arguments}
        messages = [
            *MESSAGES,
            {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "the arguments are no JSON"},
        ]
        expect(ask(with_tools, messages=messages, tools=[WEATHER]).choices, arguments)


@check
def logprobs() -> None:
    entries = ask(logprobs=True, top_logprobs=2, max_tokens=2).choices[0].logprobs.content
    expect(entries and all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries), entries)


@check
def sampling() -> None:
    """The ends of OpenAI's ranges, and whole numbers as some languages write them."""
    for fields in ({"top_p": 0, "temperature": 1}, {"extra_body": {"max_tokens": 3.0, "seed": 1.0}}):
        expect(ask(**fields).choices, fields)
    answer = ask(max_tokens=40, extra_body={"ignore_eos": True})
    expect(answer.usage.completion_tokens == 40 and answer.choices[0].finish_reason == "length", answer)


@check
def completions() -> None:
    prompts = [f"The sky of day {day} is" for day in range(12)]
    answer = plain.completions.create(model=MODEL, prompt=prompts, max_tokens=2, temperature=0, logprobs=1)
    expect([choice.index for choice in answer.choices] == list(range(12)), answer)
    expect(answer.choices[0].logprobs.token_logprobs, answer.choices[0])


def respond(client: openai.OpenAI = plain, **fields: Any) -> Any:
    asked: dict[str, Any] = dict(model=MODEL, input=PROMPT, temperature=0, max_output_tokens=8)
    return client.responses.create(**(asked | fields))


@check
def responses() -> None:
    whole = respond()
    expect(whole.output_text and whole.status in ("completed", "incomplete") and whole.store is False, whole)
    *_, last = respond(stream=True)
    expect(last.response.output_text == whole.output_text, last)
    expect(last.response.usage.total_tokens == whole.usage.total_tokens, last.response.usage)
    counted = plain.responses.input_tokens.count(model=MODEL, input=PROMPT)
    expect(counted.input_tokens == whole.usage.input_tokens, counted)
    parsed = plain.responses.parse(model=MODEL, input=PROMPT, text_format=Place, temperature=0)
    expect(isinstance(parsed.output_parsed, Place), parsed)
    with refused_with(openai.BadRequestError, "nothing is stored"):
        respond(previous_response_id=whole.id)


@check
def responses_tools() -> None:
    """A call, streamed, and an answer to its result: the items of the first are sent back as they are."""
    offered = {"type": "function"} | WEATHER["function"]
    fields: dict[str, Any] = dict(model=MODEL, temperature=0, tools=[offered], parallel_tool_calls=False)
    with with_tools.responses.stream(input=PROMPT, tool_choice="required", **fields) as events:
        kinds = {event.type for event in events}
        found = events.get_final_response()
    (call,) = [item for item in found.output if item.type == "function_call"]
    expect("response.function_call_arguments.done" in kinds and json.loads(call.arguments)["city"] in CITIES, call)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items = [{"role": "user", "content": PROMPT}, *found.output, result]
    expect(respond(with_tools, input=items, **fields | {"tool_choice": "none"}).output_text, items)


@check
def models() -> None:
    expect(MODEL in [model.id for model in plain.models.list()], "the model is not listed")
    expect(plain.models.retrieve(MODEL).id == MODEL, "another model")


@check
def several_names() -> None:
    expect(ask(model=ANOTHER_NAME).choices, "no choices")


@check
def unknown_fields() -> None:
    """They are ignored, whatever they are called, and listed in a header."""
    for name in ("unknown", "", " ", "a\r\nb", "\u00e9\u732b", "a" * 10_000):
        answer = plain.chat.completions.with_raw_response.create(
            **ASKED, max_tokens=1, extra_body={name: [], "also": 1}
        )
        expect("also" in answer.headers["x-specexport-ignored"], answer.headers)


@check
def errors() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    with refused_with(openai.NotFoundError):
        ask(model="unknown")
    with refused_with(openai.BadRequestError):
        ask(messages=[{"role": "user", "content": [image]}])
    with refused_with(openai.BadRequestError) as found:
        ask(temperature=3)
    expect((found[0].param, found[0].code) == ("temperature", "invalid_value"), found)


@check
def context_overflow() -> None:
    for prompt in (TOO_LONG, "word " * plain.models.retrieve(MODEL).max_model_len):
        with refused_with(openai.BadRequestError, "maximum context length is") as found:  # OpenAI's words
            ask(messages=[{"role": "user", "content": prompt}])
        expect(found[0].code == "context_length_exceeded", found)


@check
def cancel() -> None:
    with Leaves():
        with ask(stream=True, max_tokens=LONG, extra_body={"min_tokens": LONG}) as chunks:
            next(iter(chunks))
    expect(ask().choices, "no choices")


@check
async def async_client() -> None:
    async with openai.AsyncOpenAI(base_url=PLAIN, **OPTIONS) as client:
        asked = client.chat.completions.create
        answers = await asyncio.gather(*(asked(**ASKED, max_tokens=4) for _ in range(6)))
        expect(len({answer.choices[0].message.content for answer in answers}) == 1, answers)
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in await asked(**ASKED, max_tokens=LONG, stream=True, extra_body={"min_tokens": LONG}):
                begun.set()

        async with Leaves():
            reading = asyncio.ensure_future(read())
            await begun.wait()
            reading.cancel()


@check
async def full_queue() -> None:
    """Beyond the queue's length requests get 429, with a time after which to come again."""
    async with openai.AsyncOpenAI(base_url=PLAIN, **OPTIONS) as client:
        asked = client.chat.completions.create
        running = await asked(**ASKED, max_tokens=LONG, stream=True, extra_body={"min_tokens": LONG})
        others = [asyncio.ensure_future(asked(**ASKED, max_tokens=1)) for _ in range(24)]
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        await running.close()
        ends = await asyncio.gather(*others, return_exceptions=True)
    busy = [end for end in ends if isinstance(end, openai.RateLimitError)]
    expect(busy and all(int(end.response.headers["retry-after"]) >= 1 for end in busy), busy)
    expect(len(busy) + sum(hasattr(end, "choices") for end in ends) == 24, ends)


if __name__ == "__main__":
    main()
