// What the tab Attention asks the service, and its answers of before

import {ask, askJson} from "./api.js";
import {Maps} from "./maps.js";
import {Scores} from "./scores.js";

const MOST_NUMBERS = 6e6;  // of all maps together: 24 MB
const KEPT = {answers: 24, numbers: 2e7};  // 80 MB

// `options` are those of `ask`. A question is {text, unit?, first_token?}
export class Answers {
  constructor({layers, heads, limits}) {
    const most = Math.min(limits.max_response_elements_compact, MOST_NUMBERS);
    this.longest = Math.floor(Math.sqrt(most / (layers * heads)));
    this.before = new Map();
  }

  // Only an answer is kept, not the question under way: that one may yet be given up
  async kept(path, body, get) {
    const name = JSON.stringify([path, body]), answer = this.before.get(name) ?? await get(path, body);
    this.before.delete(name);
    this.before.set(name, answer);
    this.forget();
    return answer;
  }

  // The oldest, but for the last
  forget() {
    const size = answer => answer.weights?.length ?? 0;
    let numbers = [...this.before.values()].reduce((sum, answer) => sum + size(answer), 0);
    for (const [name, answer] of this.before) {
      if (this.before.size === 1 || (this.before.size <= KEPT.answers && numbers <= KEPT.numbers)) return;
      this.before.delete(name);
      numbers -= size(answer);
    }
  }

  scores(text, options) {
    return this.kept("v1/heads", {text}, async (path, body) => new Scores(await askJson(path, {body, ...options})));
  }

  // Whether the maps of all heads can be had. A token has a byte at least, so that short texts need no counting
  async fits({text, unit}, options) {
    if (new TextEncoder().encode(text).length <= this.longest) return true;
    const {tokens, words} = await this.kept("v1/tokenize", {text},
      async (path, body) => (await askJson(path, {body, ...options})).results[0]);
    return (unit === "word" ? words : tokens).length <= this.longest;
  }

  map(question, {layer, head}, options) {
    return this.maps({...question, layers: [layer], heads: [head]}, options);
  }

  // NPZ: exact, nothing to parse, and the service sends ten times as many numbers of it as of JSON
  maps(body, options) {
    return this.kept("v1/attention", body, async path =>
      new Maps(await (await ask(path, {body, accept: "application/octet-stream", ...options})).arrayBuffer()));
  }
}
