"""The package `openai-agents`, with its chat completions model, and its default that asks for /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from harness import LONG, MODEL, PLAIN, PROMPT, TOO_LONG, TOOLS, Leaves, check, expect, main, refused_with
from pydantic import BaseModel

set_tracing_disabled(True)


class Place(BaseModel):
    city: Literal["Oslo", "Rome"]


@function_tool
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def agent(url: str = PLAIN, name: str = MODEL, **options: Any) -> Agent:
    """With `stop_on_first_tool` a tool's result ends a run: no model has to know when to stop."""
    fields = ("max_tokens", "tool_choice", "include_usage", "extra_body")
    settings = {"max_tokens": 8} | {name: options.pop(name) for name in fields if name in options}
    kind = options.pop("kind", OpenAIChatCompletionsModel)
    parallel = False if "tools" in options or "handoffs" in options else None
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
    return Agent(
        name="agent",
        model=kind(model=name, openai_client=client),
        model_settings=ModelSettings(temperature=0.0, parallel_tool_calls=parallel, **settings),
        tool_use_behavior="stop_on_first_tool",
        **options,
    )


@check
async def chat() -> None:
    found = await Runner.run(agent(), PROMPT)
    expect(isinstance(found.final_output, str), found)


@check
async def stream() -> None:
    whole = await Runner.run(agent(), PROMPT)
    found = Runner.run_streamed(agent(include_usage=True), PROMPT)
    kinds = {event.type async for event in found.stream_events()}
    expect("raw_response_event" in kinds and found.final_output == whole.final_output, found)
    expect(found.context_wrapper.usage.output_tokens > 0, found.context_wrapper.usage)


@check
async def structured_output() -> None:
    found = await Runner.run(agent(output_type=Place, max_tokens=300), PROMPT)
    expect(isinstance(found.final_output, Place), found)


@check
async def tools() -> None:
    """A call, whole and streamed, and its result in the next run's history."""
    caller = agent(TOOLS, tools=[weather], tool_choice="required", max_tokens=300)
    called = await Runner.run(caller, PROMPT)
    expect(str(called.final_output).startswith("rain in"), called)
    history = [*called.to_input_list(), {"role": "user", "content": "So?"}]
    answered = await Runner.run(agent(TOOLS, tools=[weather], tool_choice="none"), history)  # type: ignore[arg-type]
    expect(answered.raw_responses and isinstance(answered.final_output, str), answered)


@check
async def tools_or_schema() -> None:
    """The model chooses: a call, whose result ends the run, or an answer in the schema."""
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        asked = agent(TOOLS, kind=kind, tools=[weather], output_type=Place, max_tokens=300)
        found = (await Runner.run(asked, PROMPT)).final_output
        expect(isinstance(found, Place) or str(found).startswith("rain in"), found)


@check
async def streamed_tools() -> None:
    found = Runner.run_streamed(agent(TOOLS, tools=[weather], tool_choice="required", max_tokens=300), PROMPT)
    async for _ in found.stream_events():
        pass
    expect(str(found.final_output).startswith("rain in"), found)


@check
async def responses() -> None:
    """With a schema, since an answer that `max_tokens` ends is an error to it."""
    asked = agent(kind=OpenAIResponsesModel, output_type=Place, max_tokens=300)
    expect(isinstance((await Runner.run(asked, PROMPT)).final_output, Place), "no place")
    streamed = Runner.run_streamed(asked, PROMPT)
    kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
    expect(isinstance(streamed.final_output, Place) and kinds[-1] == "response.completed", kinds)
    expect(streamed.context_wrapper.usage.output_tokens > 0, streamed.context_wrapper.usage)


@check
async def responses_tools() -> None:
    """As `tools`; the second run sends the items of the first."""
    options: dict[str, Any] = dict(kind=OpenAIResponsesModel, tools=[weather], max_tokens=300)
    called = await Runner.run(agent(TOOLS, tool_choice="required", **options), PROMPT)
    expect(str(called.final_output).startswith("rain in"), called)
    history = [*called.to_input_list(), {"role": "user", "content": "So?"}]
    told = agent(TOOLS, tool_choice="none", output_type=Place, **options)
    answered = await Runner.run(told, history)  # type: ignore[arg-type]
    expect(isinstance(answered.final_output, Place), answered)


@check
async def handoff() -> None:
    other = agent(TOOLS)
    found = await Runner.run(agent(TOOLS, handoffs=[other], tool_choice="required", max_tokens=300), PROMPT)
    expect(found.last_agent is other, found)


@check
async def errors() -> None:
    with refused_with(openai.NotFoundError):
        await Runner.run(agent(name="unknown"), PROMPT)


@check
async def context_overflow() -> None:
    with refused_with(openai.BadRequestError, "maximum context length is"):
        await Runner.run(agent(), TOO_LONG)


@check
async def cancel() -> None:
    async with Leaves():
        found = Runner.run_streamed(agent(max_tokens=LONG, extra_body={"min_tokens": LONG}), PROMPT)
        async for event in found.stream_events():
            if event.type == "raw_response_event":
                found.cancel()


if __name__ == "__main__":
    main()
