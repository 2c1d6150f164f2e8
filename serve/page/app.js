// The page: a conversation, its settings, and what the server drafted.

import { Figures } from "./figures.js";
import { Plot } from "./plot.js";
import { elements } from "./rounds.js";
import { Refused, chunks, model } from "./stream.js";

const byId = (id) => document.getElementById(id);
const log = byId("log"), prompt = byId("prompt"), trouble = byId("trouble"), legend = byId("legend");
const settings = byId("settings"), key = byId("key");
const wide = matchMedia("(min-width: 860px)");  // as in app.css
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

// Changes what is shown, and says what takes over the focus, which must not fall to the page, from what it hides.
function change(how) {
  const had = document.activeElement;
  const next = how();
  if (had !== document.body && !had.checkVisibility()) next.focus();
}

function complain(error) {
  const unreachable = !(error instanceof Refused);
  trouble.textContent = unreachable ? `The server cannot be reached (${error.message}).` : error.message;
  if (error.status !== 401) return;
  trouble.textContent = key.value
    ? "The server does not accept this API key; see Settings."
    : "This server needs an API key; see Settings.";
  key.closest("label").hidden = false;
  settings.open = true;
  key.focus();
}

async function connect() {
  try {
    served = await model(key.value);
  } catch (error) {
    byId("model").textContent = "not connected";
    complain(error);
    return;
  }
  trouble.textContent = "";
  const { meta } = served;
  byId("model").textContent = `${served.id} · ${meta.precision} on ${meta.engine}`;
  const kept = byId("draft-tokens").value;
  const counts = Array.from({ length: meta.max_draft_tokens }, (_, place) => new Option(place + 1, place + 1));
  byId("draft-tokens").replaceChildren(new Option("automatic", ""), ...counts);
  byId("draft-tokens").value = kept;
  for (const option of byId("drafter").options) option.hidden = option.value.includes("model") && !meta.draft_model;
  byId("max-tokens").max = meta.max_tokens ?? served.max_model_len;
  prompt.placeholder = meta.chat ? "Ask something" : "Begin a text; this model goes on with it";
  byId("system").disabled = !meta.chat;
  if (document.activeElement !== key) return;
  settings.open = wide.matches;
  prompt.focus();
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
  byId("start").hidden = true;
  const message = make("article", `message ${role}`);
  message.append(make("p", "who", role === "user" ? "You" : "Model"), make("p", "text", text));
  log.append(message);
  log.scrollTop = log.scrollHeight;
  return message;
}

// A text leaves the box only when it enters the conversation, and comes back if no answer begins.
async function ask(text) {
  trouble.textContent = "";
  if (!served) await connect();
  if (!served || running) {
    prompt.value ||= text;
    return;
  }
  if (prompt.value.trim() === text) prompt.value = "";
  turns.push({ role: "user", content: text });
  const question = add("user", text);
  await answer(() => {
    question.remove();
    turns.pop();
    prompt.value = [text, prompt.value].filter(Boolean).join("\n\n");
  });
}

function repeat(old) {
  if (running) return;
  trouble.textContent = "";
  const turn = turns.pop();
  answer(() => {
    log.append(old);
    turns.push(turn);
  }, old);
}

// restore: undoes the request if no answer begins. old: the answer that this one replaces.
async function answer(restore, old) {
  const [path, body] = request();
  const figures = new Figures(plot, body.specexport.speculate === false);
  const own = turns;  // a new chat may begin meanwhile
  let message, content = "", reason = null;
  running = new AbortController();
  change(() => {
    old?.remove();
    settings.open = wide.matches;
    message = add("assistant", "");
    busy(message, true);
    return byId("stop");
  });
  try {
    for await (const found of chunks(path, body, key.value, running.signal)) {
      for (const chunk of found) {
        content += chunk.choices[0]?.delta?.content ?? chunk.choices[0]?.text ?? "";
        reason = chunk.choices[0]?.finish_reason ?? reason;
        if (chunk.specexport) extend(() => grow(message, chunk.specexport));
      }
      figures.add(found.map((chunk) => chunk.specexport).filter(Boolean));
      const last = found.find((chunk) => chunk.usage);
      if (last) figures.end(last.usage, last.metrics);
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else reason = error instanceof Refused ? "error" : "lost";
    if (reason !== "stopped") complain(error);
  }
  running = null;
  change(() => {
    busy(message, false);
    if (own !== turns) return prompt;
    if (content || !["error", "lost", "stopped"].includes(reason)) finish(message, content, figures.told(reason));
    else {
      message.remove();
      restore();
      byId("start").hidden = turns.length > 0;
    }
    return (old && log.querySelector(".message:last-child .again")) || prompt;
  });
}

// Changes an answer, and follows its end unless somebody reads further up.
function extend(how) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  how();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function grow(message, drafts) {
  message.querySelector(".text").append(...elements(drafts));
  for (const token of drafts.drafted) {
    legend.hidden = false;
    const entry = legend.querySelector(`.${CSS.escape(token.source)}`);
    if (entry) entry.hidden = false;
  }
}

function finish(message, content, told) {
  turns.push({ role: "assistant", content });
  const note = make("p", "note", told);
  const again = make("button", "again", "Again"), copy = make("button", "copy", "Copy");
  again.type = copy.type = "button";
  again.addEventListener("click", () => repeat(message));
  copy.addEventListener("click", async () => {
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(content);
      else {  // browsers keep it from pages over plain HTTP
        getSelection().selectAllChildren(message.querySelector(".text"));
        document.execCommand("copy");
      }
      copy.textContent = "Copied";
    } catch (error) {
      trouble.textContent = `Nothing was copied: ${error.message}`;
    }
  });
  note.append(again, copy);
  extend(() => message.append(note));
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
  byId("start").hidden = false;
  for (const element of [legend, ...legend.querySelectorAll("mark")]) element.hidden = true;
  trouble.textContent = "";
  plot.clear();
  new Figures(plot, false).show();
  settings.open = wide.matches;
  prompt.focus();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (text && !running) ask(text);
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("reset").addEventListener("click", reset);
byId("knobs").addEventListener("submit", (event) => event.preventDefault());
key.addEventListener("change", connect);
byId("temperature").addEventListener("input", () => {
  byId("temperature-shown").textContent = byId("temperature").value;
});
byId("show-rejected").addEventListener("change", () => {
  document.body.classList.toggle("show-rejected", byId("show-rejected").checked);
});
byId("start").addEventListener("click", (event) => {
  if (event.target.matches("button")) ask(event.target.textContent);
});
const place = () => { settings.open = wide.matches || settings.contains(document.activeElement); };
wide.addEventListener("change", place);
place();
connect();
