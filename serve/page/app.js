// The page: a conversation, its settings, and what the server drafted.

import { Figures } from "./figures.js";
import { Plot } from "./plot.js";
import { elements } from "./rounds.js";
import { Refused, chunks, model } from "./stream.js";

const byId = (id) => document.getElementById(id);
const log = byId("log"), prompt = byId("prompt"), trouble = byId("trouble");
const plot = new Plot(byId("plot"));

let served = null;  // the model, as /v1/models tells it
let turns = [];  // {role, content}
let running = null;  // the AbortController of the answer that is on its way

function make(name, classes, text = "") {
  const element = document.createElement(name);
  element.className = classes;
  element.textContent = text;
  return element;
}

function complain(error) {
  const unreachable = !(error instanceof Refused);
  trouble.textContent = unreachable ? `The server cannot be reached (${error.message}).` : error.message;
  if (error.status !== 401) return;
  trouble.textContent = "This server wants an API key: see Settings.";
  byId("settings").open = true;
  byId("key").focus();
}

async function connect() {
  try {
    served = await model(byId("key").value);
  } catch (error) {
    byId("model").textContent = "not connected";
    complain(error);
    return;
  }
  trouble.textContent = "";
  const { meta } = served;
  byId("model").textContent = `${served.id} · ${meta.precision} on ${meta.engine}`;
  byId("model").title = byId("model").textContent;
  const kept = byId("draft-tokens").value;
  const counts = Array.from({ length: meta.max_draft_tokens }, (_, place) => new Option(place + 1, place + 1));
  byId("draft-tokens").replaceChildren(new Option("automatic", ""), ...counts);
  byId("draft-tokens").value = kept;
  for (const option of byId("drafter").options) option.hidden = option.value.includes("model") && !meta.draft_model;
  if (!meta.draft_model) byId("legend").querySelector(".model").hidden = true;
  byId("max-tokens").max = meta.max_tokens ?? served.max_model_len;
  prompt.placeholder = meta.chat ? "Ask something" : "Begin a text; this model goes on with it";
  byId("system").disabled = !meta.chat;
}

function request() {
  const plain = !byId("speculate").checked;
  const specexport = { show_drafts: true };
  if (plain) specexport.speculate = false;
  else {
    if (byId("drafter").value) specexport.drafter = byId("drafter").value;
    if (byId("draft-tokens").value) specexport.num_draft_tokens = Number(byId("draft-tokens").value);
  }
  const body = {
    model: served.id, stream: true, stream_options: { include_usage: true }, specexport,
    temperature: Number(byId("temperature").value), max_tokens: Math.max(1, byId("max-tokens").valueAsNumber || 256),
  };
  const predicted = byId("prediction").value;
  if (predicted && !plain) body.prediction = { type: "content", content: predicted };
  const schema = byId("schema").value.trim();
  if (schema) body.structured_outputs = { json: schema };
  if (!served.meta.chat) return ["v1/completions", { ...body, prompt: turns.at(-1).content }];
  const system = byId("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...turns] : turns;
  return ["v1/chat/completions", { ...body, messages }];
}

function add(role, text) {
  const message = make("article", `message ${role}`);
  message.append(make("p", "who", role === "user" ? "You" : "Model"), make("p", "text", text));
  log.append(message);
  log.scrollTop = log.scrollHeight;
  return message;
}

async function ask(text) {
  trouble.textContent = "";
  if (!served) await connect();
  if (!served || running) return;
  byId("examples").hidden = true;
  turns.push({ role: "user", content: text });
  add("user", text);
  await answer();
}

async function answer() {
  document.querySelectorAll(".note button").forEach((button) => button.remove());
  const message = add("assistant", "");
  const [path, body] = request();
  const figures = new Figures(plot, body.specexport.speculate === false);
  const own = turns;  // a new chat may begin meanwhile
  running = new AbortController();
  busy(message, true);
  let content = "", reason = null;
  try {
    for await (const found of chunks(path, body, byId("key").value, running.signal)) {
      for (const chunk of found) {
        content += chunk.choices[0]?.delta?.content ?? chunk.choices[0]?.text ?? "";
        reason = chunk.choices[0]?.finish_reason ?? reason;
        if (chunk.specexport) grow(message, chunk.specexport);
      }
      figures.add(found.map((chunk) => chunk.specexport).filter(Boolean));
      const last = found.find((chunk) => chunk.usage);
      if (last) figures.end(last.usage, last.metrics);
    }
  } catch (error) {
    reason = error.name === "AbortError" ? "stopped" : "error";
    if (reason === "error") complain(error);
  }
  running = null;
  busy(message, false);
  if (own === turns) finish(message, content, reason, figures);
}

function grow(message, drafts) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  message.querySelector(".text").append(...elements(drafts));
  for (const token of drafts.drafted) {
    const entry = byId("legend").querySelector(`.${CSS.escape(token.source)}`);
    if (entry) entry.hidden = false;
  }
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function finish(message, content, reason, figures) {
  if (reason === "error" && !content) {  // as if it had not been asked, so that it can be asked again
    message.previousElementSibling.remove();
    message.remove();
    const { content: asked } = turns.pop();
    prompt.value = prompt.value || asked;
    return;
  }
  turns.push({ role: "assistant", content });
  const note = make("p", "note", figures.told(reason));
  const again = make("button", "", "Again");
  again.type = "button";
  again.addEventListener("click", () => {
    if (running) return;
    turns.pop();
    message.remove();
    answer();
  });
  note.append(again);
  message.append(note);
  log.scrollTop = log.scrollHeight;
}

function busy(message, on) {
  message.classList.toggle("busy", on);
  log.setAttribute("aria-busy", String(on));  // read out once it is whole
  byId("send").hidden = on;
  byId("stop").hidden = !on;
}

function reset() {
  running?.abort();
  turns = [];
  log.querySelectorAll(".message").forEach((message) => message.remove());
  byId("examples").hidden = false;
  trouble.textContent = "";
  plot.clear();
  new Figures(plot, false).show();
  prompt.focus();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  ask(text);
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("reset").addEventListener("click", reset);
byId("knobs").addEventListener("submit", (event) => event.preventDefault());
byId("key").addEventListener("change", connect);
byId("temperature").addEventListener("input", () => {
  byId("temperature-shown").textContent = byId("temperature").value;
});
byId("show-rejected").addEventListener("change", () => {
  document.body.classList.toggle("hide-rejected", !byId("show-rejected").checked);
});
byId("examples").addEventListener("click", (event) => {
  if (event.target.matches("button")) ask(event.target.textContent);
});
const wide = matchMedia("(min-width: 860px)");
const place = () => { byId("settings").open = wide.matches; };
wide.addEventListener("change", place);
place();
connect();
