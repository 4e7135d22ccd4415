// The text in the address and what is marked in it: an edit in whichever tab takes the marks along

import {moved, read, write} from "./spans.js";
import * as state from "./state.js";

export const FIRST_TEXT = "The cat sat on the mat because it was tired.";

// {text, pronoun, candidates, gold}; candidates in the text's order, `gold` the index of the right one or null
export function marked() {
  const found = read(state.get("candidates")), candidates = found.toSorted((a, b) => a.start - b.start);
  const gold = candidates.indexOf(found[state.integer("gold")]);
  return {
    text: state.get("text", FIRST_TEXT), pronoun: read(state.get("pronoun"))[0] ?? null, candidates, gold: gold < 0 ? null : gold,
  };
}

// The other way round: what the address is to say. A token that was kept on a map was one of the text before
export function written({text, pronoun, candidates, gold}) {
  return {text, pronoun: write(pronoun ? [pronoun] : []), candidates: write(candidates), gold, token: null};
}

// The marks follow the words that an edit has left as they were
export function edited({text: before, pronoun, candidates, gold}, text) {
  const follow = span => span && moved(span, before, text), now = candidates.map(follow);
  const left = now.filter(Boolean), place = left.indexOf(now[gold]);
  return {text, pronoun: follow(pronoun), candidates: left, gold: place < 0 ? null : place};
}
