// A round of drafting as elements: what was accepted, what was rejected, and the model's own token. Texts only: what a
// model writes never becomes markup.

const SOURCES = {
  model: "guessed by the draft model",
  lookup: "copied from earlier text",
  prediction: "from your prediction",
  grammar: "forced by the grammar",
};

function span(name, text, classes, told) {
  const element = document.createElement(name);
  element.className = classes;
  element.textContent = text;
  element.title = told;
  return element;
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");

// drafts: the `specexport` of a chunk. Its pieces, one a token, are together the text that the chunk adds.
export function* elements(drafts) {
  const accepted = drafts.drafted.filter((token) => token.accepted).length;
  const round = `round ${drafts.round + 1}`;
  let text = "";  // one element for neighbours from one source
  for (const [place, piece] of drafts.pieces.entries()) {
    if (place === accepted) yield* rejected(drafts, round);
    const source = place < accepted ? drafts.drafted[place].source : null;
    const next = place + 1 < accepted ? drafts.drafted[place + 1].source : null;
    text += piece;
    if (source && source === next && place + 1 < drafts.pieces.length) continue;
    // Blanks at an edge or a line's end stay plain: colour without letters looks like damage.
    for (const part of source ? text.split(/(^\s+|\s*\n\s*|\s+$)/) : [text]) {
      const right = source && part.trim();
      if (right) yield span("mark", part, `token ${source}`, `${SOURCES[source] ?? source}, right; ${round}`);
      else if (part) yield document.createTextNode(part);
    }
    text = "";
  }
  if (drafts.pieces.length <= accepted) yield* rejected(drafts, round);
}

function* rejected(drafts, round) {
  for (const token of drafts.drafted.filter((one) => !one.accepted)) {
    const told = `${SOURCES[token.source] ?? token.source}, wrong; ${round}`;
    const element = span("del", visible(token.text), `rejected of-${token.source}`, told);
    element.setAttribute("aria-hidden", "true");  // it is no part of the text
    yield element;
  }
}
