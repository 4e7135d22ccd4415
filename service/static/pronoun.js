// The tab of pronouns: which candidate does every head attend to from the pronoun? What is asked stands in the address

import {element, prose} from "./common.js";
import {askJson, Problem, root} from "./api.js";
import {withLetters} from "./candidates.js";
import {Choices} from "./choices.js";
import {Export} from "./export.js";
import {Loading} from "./loading.js";
import {Marker} from "./marker.js";
import {edited, FIRST_TEXT, marked, written} from "./marks.js";
import {piecesOf} from "./spans.js";
import * as state from "./state.js";
import {Verdict} from "./verdict.js";

const EVALUATION = "docs#/coreference/evaluate_coreference";
const TYPING = 500;  // milliseconds without a key after which what was typed is asked

// Marked as words; `twin` differs in little, and that decides which candidate is right
const EXAMPLES = [
  {name: "cat and mat", twin: 1, gold: 0, pronoun: "it", candidates: ["cat", "mat"],
    text: FIRST_TEXT},
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
  return {...said ? marked() : marksOf(EXAMPLES[0]), options};
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
    this.typing = null; // a timer, while what was typed is not in the address
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
      onKeep: (layer, head) => state.set({layer, head}, {replace: true}),
      mapOf: (layer, head) => state.address({tab: null, layer, head, text: this.last.text}),
    });
    this.export = new Export();
    this.result.append(this.export.node, element("p", {className: "hint"}, "How often is a head right, on many sentences? See ",
      element("a", {href: new URL(EVALUATION, root).href, textContent: "POST /v1/coreference/evaluate"}), "."));
    this.loading = new Loading(this.status, this.result, {keeps: true});
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
      return element("div", {}, element("label", {}, name, select), element("p", {className: "hint", id}, ...prose(about)));
    });
    return element("details", {className: "options"}, element("summary", {textContent: "How the attention is read"}), ...rows);
  }

  // --- what the user changes ---

  #take(example) {
    if (!example) return;
    this.#settle();
    state.set(written(marksOf(example)));
    this.#follow(new Set(["text"]));  // where the address said so already, but the text had been emptied
  }

  #change(marks) {
    this.#settle();
    state.set(written({...this.last, ...marks}));
  }

  #type() {
    this.last = {...this.last, ...edited(this.last, this.text.value)};
    this.marker.show(this.last);
    this.#settle();
    this.typing = setTimeout(() => this.#typed(), TYPING);
  }

  #settle() {
    clearTimeout(this.typing);
    this.typing = null;
  }

  // An empty text is not in the address, where it would mean the first example
  #typed() {
    this.#settle();
    if (this.last.text) state.set(written(this.last), {replace: true});
    if (state.get("tab") === "pronoun") this.#askAnew();
  }

  // --- what is on show ---

  #follow(names) {
    if (names.has("text")) this.#settle();
    else if (this.typing !== null) this.#typed();  // what else changed does not undo it
    if (state.get("tab") !== "pronoun") return;
    const {text: before, pronoun, candidates, gold} = this.last ?? {}, given = ["text", "pronoun", "candidates", "gold"];
    const emptied = before === "" && !given.some(name => names.has(name));
    const view = {...viewed(), ...emptied ? {text: before, pronoun, candidates, gold} : {}};
    this.last = view;
    if (this.text.value !== view.text) this.text.value = view.text;
    const index = EXAMPLES.findIndex(({text}) => text === view.text);
    this.example.value = index < 0 ? "" : String(index);
    this.flip.disabled = EXAMPLES[index]?.twin === undefined;
    this.flip.title = this.flip.disabled ? "Only some of the examples have a twin: a sentence that differs in little" : "";
    this.result.classList.toggle("has-twin", twinOf(view) !== null);
    for (const [name, select] of Object.entries(this.selects)) select.value = view.options[name];
    if (!this.#askAnew() && (names.has("layer") || names.has("head"))) this.#keep();
  }

  // Whether what is to be asked is another question than before
  #askAnew() {
    if (JSON.stringify(questionOf(this.last)) === this.asked) return false;
    this.marker.show(this.last);
    this.#ask();
    return true;
  }

  #keep() {
    this.choices.keep(state.integer("layer"), state.integer("head"));
  }

  #nextStep({text, pronoun, candidates}) {
    if (!text.trim()) return "Type a sentence with a pronoun in it, or take an example.";
    if (!pronoun) return "Now mark the pronoun: click it in the text above.";
    if (!candidates.length) return "Now mark the candidates: the nouns that the pronoun may attend to.";
    return candidates.length < 2 ? "Now mark another candidate: a head is to choose between two at least." : "";
  }

  async #ask() {
    const view = this.last, body = questionOf(view);
    this.asked = JSON.stringify(body);
    this.next.textContent = this.#nextStep(view);
    this.expectation.stop();
    if (!view.text.trim() || !view.pronoun || view.candidates.length < 2) {
      this.result.hidden = true;
      this.loading.stop();
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
        throw error instanceof Problem ? error.told(withLetters(error.message)) : error;
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
  const places = errors.map(({pointer, detail}) =>
    [pointer?.match(/^\/(pronoun|candidates\/\d+)/)?.[1], withLetters(detail)]);
  return Object.fromEntries(places.filter(([place]) => place));
}
