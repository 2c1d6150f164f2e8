// The figures of one answer as they grow.

const byId = (id) => document.getElementById(id);
const show = (id, text) => { byId(id).textContent = text; };
const count = (number, what, more = "s") => `${number} ${what}${number === 1 ? "" : more}`;
const ENDS = {
  length: "cut at the longest length", stopped: "stopped", error: "cut off by an error",
  lost: "cut off: the connection was lost",
};

export class Figures {
  constructor(plot, plain) {
    this.plot = plot;
    this.plain = plain;
    this.rounds = this.tokens = this.drafted = this.accepted = 0;
    this.sent = this.last = performance.now();
    this.firstAt = null;
    this.behind = 0;  // tokens of later arrivals than the first
    this.cached = "–";
    this.measured = null;
  }

  // rounds: the `specexport` objects that arrived together. Their time is shared out by tokens.
  add(rounds) {
    const now = performance.now();
    const tokens = rounds.reduce((sum, round) => sum + round.pieces.length, 0);
    if (!tokens) return;
    for (const round of rounds) {
      this.rounds += 1;
      this.tokens += round.pieces.length;
      this.drafted += round.drafted.length;
      this.accepted += round.drafted.filter((token) => token.accepted).length;
      if (this.firstAt !== null) this.plot.add((now - this.last) / tokens, this.plain);  // the first has the prompt
    }
    if (this.firstAt === null) this.firstAt = now;
    else this.behind += tokens;
    this.last = now;
    this.show();
  }

  // What the engine itself measured counts, and is all there is where the whole answer arrived at once.
  end(usage, metrics) {
    this.cached = `${usage.prompt_tokens_details.cached_tokens} of ${usage.prompt_tokens}`;
    this.measured = metrics.mean_itl_ms || null;
    if (this.measured && !this.behind) {
      for (let round = 1; round < this.rounds; round += 1) this.plot.add(this.measured, this.plain);
    }
    this.show();
  }

  get perToken() {
    return this.measured ?? (this.behind ? (this.last - this.firstAt) / this.behind : null);
  }

  show() {
    byId("figures").hidden = !this.rounds;
    show("per-round", this.rounds ? (this.tokens / this.rounds).toFixed(2) : "–");
    show("per-token", this.perToken === null ? "–" : `${this.perToken.toFixed(1)} ms`);
    show("accepted", this.drafted ? `${Math.round((100 * this.accepted) / this.drafted)} %` : "–");
    show("first", this.firstAt === null ? "–" : `${Math.round(this.firstAt - this.sent)} ms`);
    show("cached", this.cached);
  }

  told(reason) {
    const parts = [`${count(this.tokens, "token")} in ${count(this.rounds, "round")}`];
    if (this.perToken !== null) parts.push(`${(1000 / this.perToken).toFixed(0)} tokens/s`);
    if (this.plain) parts.push("without drafts");
    else parts.push(`${this.accepted} of ${count(this.drafted, "guess", "es")} right`);
    if (ENDS[reason]) parts.push(ENDS[reason]);
    return parts.join(" · ");
  }
}
