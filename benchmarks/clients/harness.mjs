// What the scripts of node's clients share, as harness.py for Python's: a check is a named function, its result a line
// of JSON on stdout.
import { setTimeout } from 'node:timers/promises'

const env = process.env
export const MODEL = env.MODEL
export const PLAIN = `${env.PLAIN_URL}/v1`
export const TOOLS = `${env.TOOLS_URL}/v1`
export const PROMPT = 'Why is the sky blue?'
export const TOO_LONG = 'word '.repeat(20000)
export const LONG = 1800 // tokens: long enough to leave in the middle
export const CITIES = ['Oslo', 'Rome'] // a choice ends, whatever the model

export function expect(holds, found) {
  if (!holds) throw new Error(`unexpected: ${JSON.stringify(found)}`)
}

/** The error that `ask` ends with. */
export async function failure(ask) {
  let found
  try {
    found = await ask()
  } catch (error) {
    return error
  }
  throw new Error(`no error, but ${JSON.stringify(found)}`)
}

async function aborted() {
  const text = await (await fetch(`${env.PLAIN_URL}/metrics`)).text()
  return [...text.matchAll(/request_success_total\{.*"abort".*\} (\S+)/g)].reduce((sum, one) => sum + Number(one[1]), 0)
}

/** `leave` leaves a request; the server must notice. */
export async function leaves(leave) {
  const before = await aborted()
  await leave()
  for (let turn = 0; turn < 200; turn++) {
    if ((await aborted()) > before) return
    await setTimeout(100)
  }
  throw new Error('the server did not notice that the client left')
}

export async function run(checks) {
  for (const [check, ask] of Object.entries(checks)) {
    let outcome = 'ok'
    let reason = ''
    try {
      await ask()
    } catch (error) {
      const status = error.status ?? error.statusCode ?? error.cause?.statusCode
      outcome = status >= 400 && status < 500 ? 'refused' : 'fails'
      reason = `${error.name}: ${error.message}`.replace(/\s+/g, ' ').slice(0, 300)
    }
    // With a blank after each mark, as Python writes it.
    const [name, kind, why] = [check, outcome, reason].map((text) => JSON.stringify(text))
    console.log(`{"check": ${name}, "outcome": ${kind}, "reason": ${why}}`)
  }
  process.exit(0)
}
