// The tab of pronouns: which candidate does every head attend to from the pronoun? What is asked stands in the address

import {element, visibleJson} from "./common.js";
import {ask, askJson, Problem, root} from "./api.js";
import {Choices} from "./choices.js";
import {Loading} from "./loading.js";
import {Marker} from "./marker.js";
import {moved, piecesOf, read, write} from "./spans.js";
import * as state from "./state.js";

const TYPING = 500;  // milliseconds without a key after which what was typed is asked

// Marked as words; `twin` differs in little, and that decides which candidate is right
const EXAMPLES = [
  {name: "cat and mat", text: "The cat sat on the mat because it was tired.", pronoun: "it", candidates: ["cat", "mat"], gold: 0, twin: 1},
  {name: "cat and mat, the other way round", text: "The mat lay under the cat because it was tired.", pronoun: "it", candidates: ["mat", "cat"], gold: 1, twin: 0},
  {name: "trophy and suitcase: too big", text: "The trophy does not fit in the suitcase because it is too big.", pronoun: "it", candidates: ["trophy", "suitcase"], gold: 0, twin: 3},
  {name: "trophy and suitcase: too small", text: "The trophy does not fit in the suitcase because it is too small.", pronoun: "it", candidates: ["trophy", "suitcase"], gold: 1, twin: 2},
  {name: "a candidate on the first token", text: "Cats chase mice because they are hungry.", pronoun: "they", candidates: ["Cats", "mice"], gold: 0},
  {name: "a candidate after the pronoun", text: "When it was tired, the cat lay on the mat.", pronoun: "it", candidates: ["cat", "mat"], gold: 0},
  {name: "German", text: "Der Hund jagte die Katze, weil er hungrig war.", pronoun: "er", candidates: ["Hund", "Katze"], gold: 0},
];

// As the service describes them; the first is its default
const OPTIONS = {
  aggregate: {
    values: ["sum", "mean", "max", "last", "head_word"],
    about: "Over a candidate's tokens: all the weight (favours long names), its mean, its largest, its last token's, or that of its last word.",
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
  if (["text", "pronoun", "candidates"].every(name => state.get(name) === null)) return {...marksOf(EXAMPLES[0]), options};
  const text = state.get("text", EXAMPLES[0].text);
  const found = read(state.get("candidates")), candidates = found.toSorted((a, b) => a.start - b.start);
  const gold = candidates.indexOf(found[state.integer("gold")]);
  return {text, pronoun: read(state.get("pronoun"))[0] ?? null, candidates, gold: gold < 0 ? null : gold, options};
}

const written = ({text, pronoun, candidates, gold}) => ({text, pronoun: write(pronoun ? [pronoun] : []), candidates: write(candidates), gold});

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
    this.text = element("textarea", {rows: 2, spellcheck: false, dir: "auto", oninput: () => this.#type()});
    this.example = element("select", {onchange: () => this.#take(EXAMPLES[this.example.value])},
      element("option", {value: "", textContent: "your own"}), ...EXAMPLES.map(({name}, value) => element("option", {value, textContent: name})));
    this.flip = element("button", {type: "button", textContent: "Flip to its twin ⇄", onclick: () => this.#take(EXAMPLES[EXAMPLES[this.example.value].twin])});
    this.status = element("p", {className: "status", role: "status"});
    this.expecting = element("p", {className: "status", role: "status"});
    this.hint = element("p", {className: "next"});
    this.result = element("div", {className: "result", hidden: true});
    const marking = element("section", {className: "marking", ariaLabel: "Marking"});
    panel.classList.add("pronoun-tab");
    panel.append(
      element("div", {className: "ask"}, element("label", {className: "sentence"}, "Sentence", this.text),
        element("div", {className: "controls"}, element("label", {}, "Example", this.example), this.flip)),
      marking, this.#options(), this.hint, this.status, this.result);
    this.marker = new Marker(marking, {onMark: marks => this.#change(marks)});
    this.choices = new Choices(this.result, {
      onKeep: (layer, head) => state.set({layer, head}),
      mapOf: (layer, head) => this.#address({tab: null, layer, head, text: this.last.text}),
    });
    this.choices.twin.before(this.expecting);
    this.result.append(this.#exports());
    this.loading = new Loading(this.status, this.result);
    this.expectation = new Loading(this.expecting, this.choices.twin);
    this.saving = new Loading(this.copied, this.copied);
    state.subscribe(names => this.#follow(names));
    this.#follow(new Set());
  }

  #options() {
    this.selects = {};
    const rows = Object.entries(OPTIONS).map(([name, {values, about}]) => {
      const id = `about-${name}`;
      const select = this.selects[name] = element("select", {onchange: () => state.set({[name]: select.value === values[0] ? null : select.value})},
        ...values.map((value, i) => element("option", {value, textContent: i ? value : `${value} (default)`})));
      select.setAttribute("aria-describedby", id);
      return element("div", {}, element("label", {}, name, select), element("p", {className: "hint", id, textContent: about}));
    });
    this.reading = element("details", {className: "options"}, element("summary", {textContent: "How the attention is read"}), ...rows);
    return this.reading;
  }

  #exports() {
    this.copied = element("span", {className: "quiet", role: "status"});
    this.curl = element("pre", {tabIndex: 0});
    const button = (textContent, onclick) => element("button", {type: "button", textContent, onclick});
    return element("section", {className: "exports", ariaLabel: "Take it with you"},
      element("div", {className: "controls"},
        button("JSON", () => this.#save("application/json", "coreference.json")), button("CSV", () => this.#save("text/csv", "coreference.csv")),
        button("Copy link", () => this.#copy(location.href, "Link")), button("Copy curl command", () => this.#copy(this.curl.textContent, "Command")), this.copied),
      element("details", {}, element("summary", {textContent: "The same as a curl command"}), this.curl),
      element("p", {className: "hint"}, "How often is a head right, on many sentences? See ",
        element("a", {href: new URL("docs#/coreference/evaluate_coreference", root).href, textContent: "POST /v1/coreference/evaluate"}), "."));
  }

  async #save(accept, download) {
    await this.saving.run("Asking for the file …", async (signal, waiting) => {
      const answer = await ask("v1/coreference", {body: JSON.parse(this.asked), accept, signal, waiting});
      const href = URL.createObjectURL(await answer.blob());
      element("a", {href, download}).click();
      URL.revokeObjectURL(href);
    });
  }

  async #copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      this.copied.textContent = `${what} copied.`;
    } catch {  // not allowed, or no secure context
      this.copied.textContent = `The browser does not let this page copy: take the ${what.toLowerCase()} from ${what === "Link" ? "the address" : "below"}.`;
    }
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
    const {last} = this, sameMarks = last && write(view.candidates) === write(last.candidates) && view.pronoun?.start === last.pronoun?.start;
    if (sameMarks && view.text !== last.text) {  // edited in another tab: the marks follow
      view = {...view, ...edited({...last, gold: view.gold}, view.text)};
      state.set(written(view), {replace: true});
    }
    this.last = view;
    if (this.text.value !== view.text) this.text.value = view.text;
    const index = EXAMPLES.findIndex(({text}) => text === view.text);
    this.example.value = index < 0 ? "" : String(index);
    this.flip.disabled = EXAMPLES[index]?.twin === undefined;
    this.result.classList.toggle("has-twin", !this.flip.disabled);
    for (const [name, select] of Object.entries(this.selects)) select.value = view.options[name];
    if (JSON.stringify(questionOf(view)) !== this.asked) {
      this.marker.show(view);
      this.#ask();
    } else if (names.has("layer") || names.has("head")) this.#keep();
  }

  #keep() {
    this.choices.keep(state.integer("layer"), state.integer("head"));
  }

  #next({text, pronoun, candidates}) {
    if (!text.trim()) return "Type a sentence with a pronoun in it, or take an example.";
    if (!pronoun) return "Now mark the pronoun: click it in the text above.";
    if (!candidates.length) return "Now mark the candidates: the nouns that the pronoun may attend to.";
    return candidates.length < 2 ? "Mark another candidate, or the heads have nothing to choose between." : "";
  }

  async #ask() {
    const view = this.last, body = questionOf(view);
    this.asked = JSON.stringify(body);
    this.hint.textContent = this.#next(view);
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
        this.choices.show(answer.results[0], view.gold);
        this.#keep();
        this.curl.textContent = curlOf(body);
      } catch (error) {
        if (error.name !== "AbortError") this.result.hidden = true;
        if (error instanceof Problem) this.marker.show(view, faultsOf(error));
        throw error;
      }
    });
    if (done) this.#expect(view);
  }

  #expect({text, pronoun, candidates, gold}) {
    return this.expectation.run("Asking what the model itself expects …", async (signal, waiting) => {
      const result = async body => (await askJson("v1/coreference", {body, signal, waiting})).results[0];
      const expected = ({options, ...marks}) => result({...marks, ...marks.gold === null ? {gold: undefined} : {}, method: "substitution"});
      this.choices.expect(await expected({text, pronoun, candidates, gold}));
      const example = EXAMPLES.find(one => one.text === text), marked = example && marksOf(example), twin = EXAMPLES[example?.twin];
      if (!twin || write([marked.pronoun, ...marked.candidates]) !== write([pronoun, ...candidates])) return;
      const marks = marksOf(twin), {options} = this.last;
      const there = await result(questionOf({...marks, options}));
      this.choices.compare({name: twin.text, result: there, expected: (await expected(marks)).substitution}, marks.gold);
    });
  }
}

// {place: message}, of a problem's errors that are about a mark
function faultsOf({errors}) {
  const places = errors.map(({pointer, detail}) => [pointer?.match(/^\/(pronoun|candidates\/\d+)/)?.[1], detail]);
  return Object.fromEntries(places.filter(([place]) => place));
}

// Between the quoted ENDs a shell changes nothing
function curlOf(body) {
  const key = sessionStorage.getItem("key") === null ? "" : ' -H "Authorization: Bearer $KEY"';
  return `curl "${new URL("v1/coreference", root).href}" -H "Content-Type: application/json"${key} --data-binary @- <<'END'
${visibleJson(body)}
END`;
}
