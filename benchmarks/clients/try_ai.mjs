// Vercel's `ai`, with the provider for servers that speak OpenAI's API, and OpenAI's own, which asks for /v1/responses.
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { CITIES, LONG, MODEL, PLAIN, PROMPT, TOO_LONG, TOOLS, expect, failure, leaves, run } from './harness.mjs'

// Without supportsStructuredOutputs it leaves the schema out.
const provider = (baseURL) =>
  createOpenAICompatible({ name: 'server', baseURL, includeUsage: true, supportsStructuredOutputs: true })
const plain = provider(PLAIN)
const asked = { model: plain(MODEL), prompt: PROMPT, maxOutputTokens: 8, temperature: 0, maxRetries: 0 }
const place = z.object({ city: z.enum(CITIES) })
const weather = tool({
  description: 'The weather of a city.',
  inputSchema: place,
  execute: async ({ city }) => `rain in ${city}`,
})
const called = {
  ...asked,
  model: provider(TOOLS)(MODEL),
  maxOutputTokens: 300,
  tools: { weather },
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? 'none' : 'required' }), // a call, then words
  stopWhen: stepCountIs(2),
  providerOptions: { server: { parallel_tool_calls: false } },
}

async function twoSteps(steps) {
  const reasons = steps.map((step) => step.finishReason)
  expect(reasons.length === 2 && reasons[0] === 'tool-calls' && reasons[1] !== 'tool-calls', reasons)
  expect(steps[0].toolResults[0].output.startsWith('rain in'), steps[0].toolResults)
}

await run({
  chat: async () => {
    const answer = await generateText(asked)
    expect(typeof answer.text === 'string' && ['stop', 'length'].includes(answer.finishReason), answer.finishReason)
  },
  stream: async () => {
    const whole = await generateText(asked)
    const answer = streamText(asked)
    let text = ''
    for await (const part of answer.textStream) text += part
    expect(text === whole.text && (await answer.finishReason) === whole.finishReason, text)
  },
  usage: async () => {
    const answer = streamText(asked)
    await answer.consumeStream()
    const usage = await answer.usage
    expect(usage.inputTokens > 0 && usage.outputTokens > 0, usage)
  },
  structured_output: async () => {
    for (const output of [Output.object({ schema: place }), Output.choice({ options: CITIES })]) {
      const answer = await generateText({ ...asked, output, maxOutputTokens: 300 })
      expect(CITIES.includes(answer.output.city ?? answer.output), answer.output)
    }
  },
  tools: async () => twoSteps((await generateText(called)).steps),
  tools_or_schema: async () => {
    // The model chooses: a call, or an answer in the schema.
    const fields = { ...called, prepareStep: undefined, stopWhen: stepCountIs(1), output: Output.object({ schema: place }) }
    const answer = await generateText(fields)
    expect(answer.toolCalls.length || CITIES.includes(answer.output.city), answer.text)
  },
  streamed_tools: async () => {
    const answer = streamText(called)
    await answer.consumeStream()
    await twoSteps(await answer.steps)
  },
  responses: async () => {
    const fields = { ...asked, model: createOpenAI({ baseURL: PLAIN, apiKey: 'none' })(MODEL) }
    const whole = await generateText({ ...fields, maxOutputTokens: 16 })
    const answer = streamText({ ...fields, maxOutputTokens: 16 })
    let text = ''
    for await (const part of answer.textStream) text += part
    expect(text === whole.text && (await answer.finishReason) === whole.finishReason, text)
    const found = await generateText({ ...fields, output: Output.object({ schema: place }), maxOutputTokens: 300 })
    expect(CITIES.includes(found.output.city), found.output)
  },
  responses_tools: async () => {
    const model = createOpenAI({ baseURL: TOOLS, apiKey: 'none' })(MODEL)
    const providerOptions = { openai: { store: false, parallelToolCalls: false } }
    const answer = streamText({ ...called, model, providerOptions })
    await answer.consumeStream()
    await twoSteps(await answer.steps)
  },
  completions: async () => {
    const answer = await generateText({ ...asked, model: plain.completionModel(MODEL) })
    expect(typeof answer.text === 'string', answer.text)
  },
  sampling: async () => {
    const fields = { temperature: 1, topP: 0, topK: 3, seed: 1, presencePenalty: 0.1, stopSequences: ['x'] }
    await generateText({ ...asked, ...fields })
  },
  errors: async () => {
    const error = await failure(() => generateText({ ...asked, model: plain('unknown') }))
    expect(APICallError.isInstance(error) && error.statusCode === 404 && !error.isRetryable, error)
  },
  context_overflow: async () => {
    const error = await failure(() => generateText({ ...asked, prompt: TOO_LONG }))
    expect(error.data?.error?.code === 'context_length_exceeded', error)
    expect(/maximum context length is/.test(error.message), error.message)
  },
  cancel: () =>
    leaves(async () => {
      const leaving = new AbortController()
      const providerOptions = { server: { min_tokens: LONG } }
      const answer = streamText({ ...asked, maxOutputTokens: LONG, providerOptions, abortSignal: leaving.signal })
      for await (const part of answer.fullStream) if (part.type === 'text-delta') leaving.abort()
    }),
})
