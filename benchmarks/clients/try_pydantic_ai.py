"""The package `pydantic-ai`, with its chat completions model, and its default that asks for /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

from harness import CITIES, LONG, MODEL, PLAIN, PROMPT, TOO_LONG, TOOLS, Leaves, check, expect, main, refused_with
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, Tool, ToolOutput
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Place(BaseModel):
    city: Literal["Oslo", "Rome"]


def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def model(url: str = PLAIN, name: str = MODEL, kind: Any = OpenAIChatModel) -> Any:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
    return kind(name, provider=OpenAIProvider(openai_client=client))


def agent(url: str = PLAIN, **options: Any) -> Any:
    settings = {"max_tokens": options.pop("max_tokens", 8), "temperature": 0.0, "parallel_tool_calls": False}
    settings |= {"extra_body": options.pop("extra_body", {})}
    return Agent(model(url, kind=options.pop("kind", OpenAIChatModel)), model_settings=settings, retries=0, **options)


@check
async def chat() -> None:
    found = await agent().run(PROMPT)
    expect(isinstance(found.output, str), found)


@check
async def stream() -> None:
    whole = await agent().run(PROMPT)
    async with agent().run_stream(PROMPT) as run:
        text = "".join([part async for part in run.stream_text(delta=True)])
        expect(text == whole.output, text)
        usage = run.usage() if callable(run.usage) else run.usage
        expect(usage.output_tokens > 0, usage)


@check
async def structured_output() -> None:
    for kind in (NativeOutput(Place), ToolOutput(Place)):
        found = await agent(TOOLS, output_type=kind, max_tokens=300).run(PROMPT)
        expect(isinstance(found.output, Place), found)


def calling(history: list[Any], choice: str, kind: Any = OpenAIChatModel) -> dict[str, Any]:
    """The arguments of a direct request with the tool, in which `choice` says whether it is called."""
    settings: Any = {"max_tokens": 300, "temperature": 0.0, "parallel_tool_calls": False, "tool_choice": choice}
    offered = ModelRequestParameters(function_tools=[Tool(weather).tool_def])
    return dict(
        model=model(TOOLS, kind=kind), messages=history, model_settings=settings, model_request_parameters=offered
    )


@check
async def tools() -> None:
    """A call, and with its result in the history an answer."""
    history: list[Any] = [ModelRequest.user_text_prompt(PROMPT)]
    called = await model_request(**calling(history, "required"))
    (call,) = called.tool_calls
    found = ToolReturnPart(call.tool_name, weather(**call.args_as_dict()), call.tool_call_id)
    answer = await model_request(**calling([*history, called, ModelRequest([found])], "none"))
    expect(not answer.tool_calls, answer)


@check
async def tools_or_schema() -> None:
    """The model chooses: a call, or an answer in the schema."""
    settings: Any = {"max_tokens": 300, "temperature": 0.0, "parallel_tool_calls": False}
    place = NativeOutput(Place)
    one = Agent(model(TOOLS), output_type=place, tools=[weather], model_settings=settings, retries=0)
    async with one.iter(PROMPT) as run:
        async for step in run:
            if answer := getattr(step, "model_response", None):
                break
    expect(answer and answer.parts, answer)


@check
async def streamed_tools() -> None:
    history: list[Any] = [ModelRequest.user_text_prompt(PROMPT)]
    async with model_request_stream(**calling(history, "required")) as events:
        async for _ in events:
            pass
        (call,) = events.get().tool_calls
    expect(call.args_as_dict()["city"] in CITIES, call)


@check
async def responses() -> None:
    found = await agent(kind=OpenAIResponsesModel).run(PROMPT)
    async with agent(kind=OpenAIResponsesModel).run_stream(PROMPT) as run:
        text = "".join([part async for part in run.stream_text(delta=True)])
    expect(text == found.output, text)
    place = await agent(output_type=NativeOutput(Place), max_tokens=300, kind=OpenAIResponsesModel).run(PROMPT)
    expect(isinstance(place.output, Place), place)


@check
async def responses_tools() -> None:
    history: list[Any] = [ModelRequest.user_text_prompt(PROMPT)]
    called = await model_request(**calling(history, "required", OpenAIResponsesModel))
    (call,) = called.tool_calls
    found = ToolReturnPart(call.tool_name, weather(**call.args_as_dict()), call.tool_call_id)
    answer = await model_request(**calling([*history, called, ModelRequest([found])], "none", OpenAIResponsesModel))
    expect(not answer.tool_calls, answer)


@check
async def errors() -> None:
    with refused_with(ModelHTTPError, "unknown"):
        await Agent(model(name="unknown")).run(PROMPT)


@check
async def context_overflow() -> None:
    with refused_with(ModelContextWindowExceededError):
        await agent().run(TOO_LONG)


@check
async def cancel() -> None:
    async with Leaves():
        async with agent(max_tokens=LONG, extra_body={"min_tokens": LONG}).run_stream(PROMPT) as run:
            async for _ in run.stream_text(delta=True, debounce_by=None):
                break
            await run.cancel()


if __name__ == "__main__":
    main()
