// What the tab Attention asks the service, and its answers of before

import {ask, askJson} from "./api.js";
import {Maps} from "./maps.js";
import {Scores} from "./scores.js";

const MOST_NUMBERS = 6e6;  // of all maps together: 24 MB
const KEPT = 8;

// `options` are those of `ask`. A question is {text, unit?, first_token?}
export class Answers {
  constructor({layers, heads, limits}) {
    this.longest = Math.floor(Math.sqrt(Math.min(limits.max_response_elements_compact, MOST_NUMBERS) / (layers * heads)));
    this.before = new Map();
  }

  // Only an answer is kept, not the question under way: that one may yet be given up
  async kept(path, body, get) {
    const name = JSON.stringify([path, body]), answer = this.before.get(name) ?? await get(path, body);
    this.before.delete(name);
    this.before.set(name, answer);
    if (this.before.size > KEPT) this.before.delete(this.before.keys().next().value);
    return answer;
  }

  scores(text, options) {
    return this.kept("v1/heads", {text}, async (path, body) => new Scores(await askJson(path, {body, ...options})));
  }

  // Of all heads; null where the text is too long for that. A token has a byte at least, so that short texts need no counting
  async maps(question, options) {
    if (new TextEncoder().encode(question.text).length > this.longest) {
      const {tokens, words} = await this.kept("v1/tokenize", {text: question.text},
        async (path, body) => (await askJson(path, {body, ...options})).results[0]);
      if ((question.unit === "word" ? words : tokens).length > this.longest) return null;
    }
    return this.mapsOf(question, options);
  }

  map(question, {layer, head}, options) {
    return this.mapsOf({...question, layers: [layer], heads: [head]}, options);
  }

  // NPZ: exact, a tenth of the work of JSON, and the service sends ten times as many numbers
  mapsOf(body, options) {
    return this.kept("v1/attention", body, async path =>
      new Maps(await (await ask(path, {body, accept: "application/octet-stream", ...options})).arrayBuffer()));
  }
}
