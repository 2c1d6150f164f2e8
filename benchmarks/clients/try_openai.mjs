// The npm package `openai`.
import OpenAI from 'openai'
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { CITIES, LONG, MODEL, PLAIN, PROMPT, TOO_LONG, TOOLS, expect, failure, leaves, run } from './harness.mjs'

const options = { apiKey: 'none', maxRetries: 0, timeout: 300000 }
const plain = new OpenAI({ baseURL: PLAIN, ...options })
const withTools = new OpenAI({ baseURL: TOOLS, ...options })
const asked = { model: MODEL, messages: [{ role: 'user', content: PROMPT }], max_tokens: 8, temperature: 0 }
const Place = z.object({ city: z.enum(CITIES), warm: z.boolean() })
const weather = () =>
  zodFunction({
    name: 'weather',
    parameters: z.object({ city: z.enum(CITIES) }),
    function: ({ city }) => `rain in ${city}`,
  })

/** Two rounds: a call, then with its result in the history another one. */
function rounds(more) {
  const fields = { tools: [weather()], tool_choice: 'required', parallel_tool_calls: false, max_tokens: 300, ...more }
  return withTools.chat.completions.runTools({ ...asked, ...fields }, { maxChatCompletions: 2 })
}

async function calls(runner) {
  await runner.done()
  const results = runner.messages.filter((message) => message.role === 'tool')
  expect(results.length === 2 && results.every((message) => message.content.startsWith('rain in')), runner.messages)
}

await run({
  chat: async () => {
    const answer = await plain.chat.completions.create(asked)
    expect(typeof answer.choices[0].message.content === 'string', answer)
    expect(['stop', 'length'].includes(answer.choices[0].finish_reason), answer)
  },
  stream: async () => {
    const whole = await plain.chat.completions.create(asked)
    const final = await plain.chat.completions.stream(asked).finalMessage()
    expect(final.content === whole.choices[0].message.content, final)
  },
  usage: async () => {
    let last
    const chunks = { ...asked, stream: true, stream_options: { include_usage: true } }
    for await (const chunk of await plain.chat.completions.create(chunks)) last = chunk
    expect(last.usage.completion_tokens > 0 && last.choices.length === 0, last)
  },
  structured_output: async () => {
    const response_format = zodResponseFormat(Place, 'place')
    const answer = await plain.chat.completions.parse({ ...asked, response_format, max_tokens: 300 })
    expect(CITIES.includes(answer.choices[0].message.parsed.city), answer)
  },
  tools: () => calls(rounds({})),
  streamed_tools: () => calls(rounds({ stream: true })),
  logprobs: async () => {
    const answer = await plain.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 2 })
    expect(answer.choices[0].logprobs.content[0].top_logprobs.length === 2, answer)
  },
  responses: async () => {
    const fields = { model: MODEL, input: PROMPT, max_output_tokens: 8, temperature: 0 }
    const whole = await plain.responses.create(fields)
    const final = await plain.responses.stream(fields).finalResponse()
    expect(whole.output_text && final.output_text === whole.output_text, final)
  },
  models: async () => {
    const names = (await plain.models.list()).data.map((model) => model.id)
    expect(names.includes(MODEL), names)
  },
  errors: async () => {
    const error = await failure(() => plain.chat.completions.create({ ...asked, model: 'unknown' }))
    expect(error instanceof OpenAI.NotFoundError && error.code === 'model_not_found', error)
  },
  context_overflow: async () => {
    const messages = [{ role: 'user', content: TOO_LONG }]
    const error = await failure(() => plain.chat.completions.create({ ...asked, messages }))
    expect(error.code === 'context_length_exceeded' && /maximum context length is/.test(error.message), error.message)
  },
  cancel: () =>
    leaves(async () => {
      const chunks = await plain.chat.completions.create({ ...asked, max_tokens: LONG, min_tokens: LONG, stream: true })
      for await (const _ of chunks) break
    }),
})
