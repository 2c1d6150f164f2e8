// One request to the API, and its stream of chunks.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  const given = { "Content-Type": "application/json" };
  if (key) given.Authorization = `Bearer ${key}`;
  return given;
}

async function refusal(answer) {
  let told = `the server says ${answer.status}`;
  try {
    told = (await answer.json()).error.message;
  } catch {
    // something in between answered, not this server
  }
  return new Refused(told, answer.status);
}

export async function model(key) {
  const answer = await fetch("v1/models", { headers: headers(key) });
  if (!answer.ok) throw await refusal(answer);
  return (await answer.json()).data[0];
}

// Lists of chunks, those that arrived together in one list.
export async function* chunks(path, body, key, signal) {
  const answer = await fetch(path, { method: "POST", headers: headers(key), body: JSON.stringify(body), signal });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", done = false;
  try {
    while (!done) {
      const part = await reader.read();
      if (part.done) throw new Error("the stream ended before its end");
      const events = (held + part.value).split("\n\n");
      held = events.pop();
      const found = [];
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;  // a comment, so that nothing in between hangs up
        const data = event.slice(6);
        done = done || data === "[DONE]";
        if (data !== "[DONE]") found.push(JSON.parse(data));
      }
      const error = found.find((chunk) => chunk.error)?.error;
      yield found.filter((chunk) => !chunk.error);
      if (error) throw new Refused(error.message, 0);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
