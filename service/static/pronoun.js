// The tab of pronouns: which candidate does every head attend to from the pronoun? What is asked stands in the address

import {element} from "./common.js";
import {askJson, Problem, root} from "./api.js";
import {Choices} from "./choices.js";
import {Export} from "./export.js";
import {Loading} from "./loading.js";
import {Marker} from "./marker.js";
import {moved, piecesOf, read, write} from "./spans.js";
import * as state from "./state.js";
import {Verdict} from "./verdict.js";

const EVALUATION = "docs#/coreference/evaluate_coreference";
const TYPING = 500;  // milliseconds without a key after which what was typed is asked

// Marked as words; `twin` differs in little, and that decides which candidate is right
const EXAMPLES = [
  {name: "cat and mat", twin: 1, gold: 0, pronoun: "it", candidates: ["cat", "mat"],
    text: "The cat sat on the mat because it was tired."},
  {name: "cat and mat, the other way round", twin: 0, gold: 1, pronoun: "it", candidates: ["mat", "cat"],
    text: "The mat lay under the cat because it was tired."},
  {name: "trophy and suitcase: too big", twin: 3, gold: 0, pronoun: "it", candidates: ["trophy", "suitcase"],
    text: "The trophy does not fit in the suitcase because it is too big."},
  {name: "trophy and suitcase: too small", twin: 2, gold: 1, pronoun: "it", candidates: ["trophy", "suitcase"],
    text: "The trophy does not fit in the suitcase because it is too small."},
  {name: "a candidate on the first token", gold: 0, pronoun: "they", candidates: ["Cats", "mice"],
    text: "Cats chase mice because they are hungry."},
  {name: "a candidate after the pronoun", gold: 0, pronoun: "it", candidates: ["cat", "mat"],
    text: "When it was tired, the cat lay on the mat."},
  {name: "German", gold: 0, pronoun: "er", candidates: ["Hund", "Katze"],
    text: "Der Hund jagte die Katze, weil er hungrig war."},
];

// As the service describes them; the first is its default
const OPTIONS = {
  aggregate: {
    values: ["sum", "mean", "max", "last", "head_word"],
    about: "Over a candidate's tokens: all the weight (favours long names), its mean, its largest, its last token's, " +
      "or that of its last word.",
  },
  query: {values: ["last", "first", "mean"], about: "Which of the pronoun's tokens looks."},
  normalize: {
    values: ["none", "candidates", "exclude_sink"],
    about: "`candidates`: shares of what all candidates get. `exclude_sink`: shares of what token 0 leaves.",
  },
  first_token: {values: ["keep", "drop"], about: "`drop`: token 0, which draws attention whatever it is, counts for no candidate."},
};

function marksOf({text, pronoun, candidates, gold}) {
  const find = word => {
    const {start, end} = piecesOf(text).find(piece => piece.text === word);
    return {start, end};
  };
  return {text, pronoun: find(pronoun), candidates: candidates.map(find), gold};
}

// What the address says; where it says nothing, the first example
function viewed() {
  const options = Object.fromEntries(Object.entries(OPTIONS).map(([name, {values}]) => {
    const given = state.get(name);
    return [name, values.includes(given) ? given : values[0]];
  }));
  const said = ["text", "pronoun", "candidates"].some(name => state.get(name) !== null);
  if (!said) return {...marksOf(EXAMPLES[0]), options};
  const text = state.get("text", EXAMPLES[0].text);
  const found = read(state.get("candidates")), candidates = found.toSorted((a, b) => a.start - b.start);
  const gold = candidates.indexOf(found[state.integer("gold")]);
  return {text, pronoun: read(state.get("pronoun"))[0] ?? null, candidates, gold: gold < 0 ? null : gold, options};
}

// The other way round: what the address is to say
function written({text, pronoun, candidates, gold}) {
  return {text, pronoun: write(pronoun ? [pronoun] : []), candidates: write(candidates), gold};
}

// The marks follow the words that an edit has left as they were
function edited({text: before, pronoun, candidates, gold}, text) {
  const follow = span => span && moved(span, before, text), now = candidates.map(follow);
  const left = now.filter(Boolean), place = left.indexOf(now[gold]);
  return {text, pronoun: follow(pronoun), candidates: left, gold: place < 0 ? null : place};
}

// The body of the question
function questionOf({text, pronoun, candidates, gold, options}) {
  const chosen = Object.entries(options).filter(([name, value]) => value !== OPTIONS[name].values[0]);
  return {text, pronoun, candidates, ...gold === null ? {} : {gold}, heads: "all", ...Object.fromEntries(chosen)};
}

export function mount(panel) {
  new PronounTab(panel);
}

class PronounTab {
  constructor(panel) {
    this.asked = null;  // the body, as JSON
    this.last = null;   // what was on show
    const option = (value, textContent) => element("option", {value, textContent});
    this.text = element("textarea", {rows: 2, spellcheck: false, dir: "auto", oninput: () => this.#type()});
    this.example = element("select", {onchange: () => this.#take(EXAMPLES[this.example.value])},
      option("", "your own"), ...EXAMPLES.map(({name}, index) => option(index, name)));
    this.flip = element("button", {type: "button", textContent: "Flip to its twin ⇄",
      onclick: () => this.#take(EXAMPLES[EXAMPLES[this.example.value].twin])});
    this.status = element("p", {className: "status", role: "status"});
    this.next = element("p", {className: "next"});
    this.result = element("div", {className: "result", hidden: true});
    const marking = element("section", {className: "marking", ariaLabel: "Marking"});
    panel.classList.add("pronoun-tab");
    panel.append(
      element("div", {className: "ask"}, element("label", {className: "sentence"}, "Sentence", this.text),
        element("div", {className: "controls"}, element("label", {}, "Example", this.example), this.flip)),
      marking, this.#options(), this.next, this.status, this.result);
    this.marker = new Marker(marking, {onMark: marks => this.#change(marks)});
    this.verdict = new Verdict(this.result);
    this.choices = new Choices(this.result, {
      onPoint: head => this.verdict.point(head),
      onKeep: (layer, head) => state.set({layer, head}),
      mapOf: (layer, head) => this.#address({tab: null, layer, head, text: this.last.text}),
    });
    this.export = new Export();
    this.result.append(this.export.node, element("p", {className: "hint"}, "How often is a head right, on many sentences? See ",
      element("a", {href: new URL(EVALUATION, root).href, textContent: "POST /v1/coreference/evaluate"}), "."));
    this.loading = new Loading(this.status, this.result);
    this.expectation = new Loading(this.verdict.expecting, this.verdict.twin);
    state.subscribe(names => this.#follow(names));
    this.#follow(new Set());
  }

  #options() {
    this.selects = {};
    const rows = Object.entries(OPTIONS).map(([name, {values, about}]) => {
      const id = `about-${name}`, [first] = values;
      const options = values.map(value => element("option", {value, textContent: value === first ? `${value} (default)` : value}));
      const select = element("select", {onchange: () => state.set({[name]: select.value === first ? null : select.value})}, ...options);
      select.setAttribute("aria-describedby", id);
      this.selects[name] = select;
      return element("div", {}, element("label", {}, name, select), element("p", {className: "hint", id, textContent: about}));
    });
    return element("details", {className: "options"}, element("summary", {textContent: "How the attention is read"}), ...rows);
  }

  #address(changes) {
    const next = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) next.delete(name);
      else next.set(name, value);
    }
    return `#${next}`;
  }

  // --- what the user changes ---

  #take(example) {
    if (example) state.set(written(marksOf(example)));
  }

  #change(marks) {
    clearTimeout(this.typing);
    state.set(written({...this.last, ...marks}));
  }

  #type() {
    this.last = {...this.last, ...edited(this.last, this.text.value)};
    this.marker.show(this.last);
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      if (this.last.text) state.set(written(this.last), {replace: true});
      this.#ask();  // an empty text is not in the address, where it would mean the first example
    }, TYPING);
  }

  // --- what is on show ---

  #follow(names) {
    if (state.get("tab") !== "pronoun") return;
    let view = viewed();
    const {last} = this, marksIn = one => write([one.pronoun ?? {start: "", end: ""}, ...one.candidates]);
    if (last && view.text !== last.text && marksIn(view) === marksIn(last)) {  // edited in another tab: the marks follow
      view = {...view, ...edited({...last, gold: view.gold}, view.text)};
      state.set(written(view), {replace: true});
    }
    this.last = view;
    if (this.text.value !== view.text) this.text.value = view.text;
    const index = EXAMPLES.findIndex(({text}) => text === view.text);
    this.example.value = index < 0 ? "" : String(index);
    this.flip.disabled = EXAMPLES[index]?.twin === undefined;
    this.result.classList.toggle("has-twin", twinOf(view) !== null);
    for (const [name, select] of Object.entries(this.selects)) select.value = view.options[name];
    if (JSON.stringify(questionOf(view)) !== this.asked) {
      this.marker.show(view);
      this.#ask();
    } else if (names.has("layer") || names.has("head")) this.#keep();
  }

  #keep() {
    this.choices.keep(state.integer("layer"), state.integer("head"));
  }

  #nextStep({text, pronoun, candidates}) {
    if (!text.trim()) return "Type a sentence with a pronoun in it, or take an example.";
    if (!pronoun) return "Now mark the pronoun: click it in the text above.";
    if (!candidates.length) return "Now mark the candidates: the nouns that the pronoun may attend to.";
    return candidates.length < 2 ? "Mark another candidate, or the heads have nothing to choose between." : "";
  }

  async #ask() {
    const view = this.last, body = questionOf(view);
    this.asked = JSON.stringify(body);
    this.next.textContent = this.#nextStep(view);
    this.expectation.run("", async () => {});  // ends what still runs
    if (!view.text.trim() || !view.pronoun || !view.candidates.length) {
      this.result.hidden = true;
      this.loading.run("", async () => {});
      return;
    }
    const done = await this.loading.run("Reading the sentence …", async (signal, waiting) => {
      try {
        const answer = await askJson("v1/coreference", {body, signal, waiting});
        this.result.hidden = false;
        this.verdict.show(answer.results[0], view.gold);
        this.choices.show(answer.results[0]);
        this.#keep();
        this.export.offer([{what: "Every head’s choice", path: "v1/coreference", body, file: "coreference", formats: ["CSV", "JSON"]}]);
      } catch (error) {
        if (error.name !== "AbortError") this.result.hidden = true;
        if (error instanceof Problem) this.marker.show(view, faultsOf(error));
        throw error;
      }
    });
    if (done) this.#expect(view);
  }

  #expect({options, ...marks}) {
    return this.expectation.run("Asking what the model itself expects …", async (signal, waiting) => {
      const result = async body => (await askJson("v1/coreference", {body, signal, waiting})).results[0];
      const expected = ({gold, ...rest}) => result({...rest, ...gold === null ? {} : {gold}, method: "substitution"});
      this.verdict.expect(await expected(marks));
      const twin = twinOf(marks);
      if (!twin) return;
      const there = await result(questionOf({...twin, options})), {substitution} = await expected(twin);
      this.verdict.compare({...twin, result: there, expected: substitution});
    });
  }
}

// The marks of an example's twin, where these are the example's own; else null
function twinOf(marks) {
  const example = EXAMPLES.find(({text}) => text === marks.text), own = example && JSON.stringify(written(marksOf({...example, gold: 0})));
  return example?.twin !== undefined && own === JSON.stringify(written({...marks, gold: 0})) ? marksOf(EXAMPLES[example.twin]) : null;
}

// {place: message}, of a problem's errors that are about a mark
function faultsOf({errors}) {
  const places = errors.map(({pointer, detail}) => [pointer?.match(/^\/(pronoun|candidates\/\d+)/)?.[1], detail]);
  return Object.fromEntries(places.filter(([place]) => place));
}
