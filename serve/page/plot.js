// Time per token, a bar per round, over all answers of the page: drafted ones beside plain ones.

const SPACE = "http://www.w3.org/2000/svg";
const BAR = 4, GAP = 1, LEFT = 30, TOP = 14, KEPT = 2000;

function shape(name, attributes, text = "") {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

const short = (value) => (value < 10 ? value.toFixed(1) : value.toFixed(0));

export class Plot {
  constructor(svg) {
    this.svg = svg;
    this.rounds = [];  // {ms, plain}
    this.due = false;
    new ResizeObserver(() => this.later()).observe(svg);
  }

  add(ms, plain) {
    this.rounds.push({ ms, plain });
    if (this.rounds.length > KEPT) this.rounds.splice(0, KEPT / 2);
    this.later();
  }

  clear() {
    this.rounds = [];
    this.later();
  }

  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight, room = height - TOP - 6;
    const shown = this.rounds.slice(-Math.max(1, Math.floor((width - LEFT) / (BAR + GAP))));
    const sorted = shown.map((round) => round.ms).sort((one, other) => one - other);
    // A single slow round must not flatten all others; it is cut at the top.
    const top = 1.25 * (sorted[Math.floor(0.95 * (sorted.length - 1))] || 1);
    const ground = height - 6, y = (ms) => ground - Math.min(1, ms / top) * room;
    const parts = [];
    const step = [1, 2, 5].map((one) => one * 10 ** Math.floor(Math.log10(top / 2))).findLast((one) => one <= top / 2);
    for (let ms = 0; shown.length && ms <= top; ms += step) {
      parts.push(shape("line", { class: "ground", x1: LEFT, x2: width, y1: y(ms), y2: y(ms) }));
      parts.push(shape("text", { x: LEFT - 5, y: y(ms) + 4, "text-anchor": "end" }, String(+ms.toFixed(3))));
    }
    shown.forEach(({ ms, plain }, place) => {
      const tall = Math.max(1, ground - y(ms));
      const where = { x: LEFT + place * (BAR + GAP), y: ground - tall, width: BAR, height: tall };
      parts.push(shape("rect", { class: plain ? "bar plain" : "bar", ...where }));
    });
    const plain = mean(this.rounds.filter((round) => round.plain));
    if (plain && plain < top) {
      parts.push(shape("line", { class: "mean", x1: LEFT, x2: width, y1: y(plain), y2: y(plain) }));
      parts.push(shape("text", { x: width, y: 10, "text-anchor": "end" }, `without guesses ${short(plain)} ms`));
    }
    this.svg.setAttribute("viewBox", `0 0 ${Math.max(width, 1)} ${Math.max(height, 1)}`);
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("aria-label", this.told(plain));
  }

  told(plain) {
    const drafted = mean(this.rounds.filter((round) => !round.plain));
    if (!drafted && !plain) return "Time per token, round by round: nothing yet";
    const parts = [];
    if (drafted) parts.push(`${short(drafted)} ms with guesses`);
    if (plain) parts.push(`${short(plain)} ms without`);
    return `Time per token, round by round; on average ${parts.join(", ")}`;
  }
}

function mean(rounds) {
  return rounds.length ? rounds.reduce((sum, round) => sum + round.ms, 0) / rounds.length : 0;
}
