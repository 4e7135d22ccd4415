// The tab Attention: a text, the mosaic of all heads, and the map of one of them, or of two side by side

import {element, plural, prose} from "./common.js";
import {Problem} from "./api.js";
import {Answers} from "./answers.js";
import {Export} from "./export.js";
import {nameOf, titleOf} from "./grid.js";
import {Loading} from "./loading.js";
import {MapView} from "./map.js";
import {Mosaic} from "./mosaic.js";
import {MEANINGS} from "./scores.js";
import {edited, FIRST_TEXT, marked, written} from "./marks.js";
import * as state from "./state.js";

const FIRST = {layer: 5, head: 5};
const EXAMPLES = {
  "the article’s": FIRST_TEXT,
  "repetition": "one two three four five one two three four five one two three four five",
  "two pronouns": "When Anna met Maria in the library, she told her that the book was not hers.",
  "code": "def mean(values):\n    total = sum(values)\n    return total / len(values)\n",
  "German": "Der Hund bellte den Briefträger an, weil er ihn nicht kannte.",
  "Arabic": "جلس القط على السجادة لأنه كان متعبا.",
  "long": "The committee that had reviewed the proposals of the three universities decided that none of them " +
    "was ready. Each of them relied on measurements that nobody outside the group had been able to repeat, and the one " +
    "that looked best in the summary was the one that had left out the most. So the committee asked for the raw data, " +
    "and waited. When it came, most of it was empty.",
};

export async function mount(panel, model) {
  const tab = new AttentionTab(panel);
  tab.start(await model);
}

class AttentionTab {
  constructor(panel) {
    // `maps` of all heads: null where the text is too long for that, undefined until they come; `scored`: whose `scores`
    Object.assign(this, {panel, mosaic: null, scores: null, scored: null, maps: undefined, fetched: null});
    Object.assign(this, {stale: true, compared: null, next: null});
    panel.classList.add("attention-tab", "head-scores");
    this.form = this.buildForm();
    const reading = status();
    this.warnings = element("ul", {className: "warnings", hidden: true});
    this.result = element("div", {className: "result"}, element("div", {className: "mosaic"}), element("div", {className: "heads"}));
    this.result.classList.add("awaited");
    this.reading = new Loading(reading, this.result, {keeps: true, onCancel: () => this.scoring?.stop()});
    panel.replaceChildren(this.form, reading, this.warnings, this.result);
    this.fillForm();
    state.subscribe(names => this.onState(names));
  }

  // Once it is known how many heads there are
  buildResult(model) {
    const [scoring, fetching] = [status(), status()];
    this.mosaicPart = element("div", {className: "mosaic"});
    [this.left, this.right] = ["left", "right"].map(buildView);
    const onKeep = token => state.set({token}, {replace: true});
    this.left.view = new MapView(this.left.map, {onPoint: token => this.point(this.right.view, token), onKeep});
    this.right.view = new MapView(this.right.map, {onPoint: token => this.point(this.left.view, token), onKeep});
    const compare = () => state.set({compare: this.compared ? null : this.kept.name});
    this.compareButton = element("button", {type: "button", onclick: compare});
    this.compareHint = element("span", {className: "quiet"});
    this.views = element("div", {className: "views"}, this.left.part, this.right.part);
    this.export = new Export();
    this.numbers = buildNumbers();
    this.meanings = buildMeanings();
    const heads = element("section", {className: "heads", ariaLabel: "The head"},
      element("div", {className: "controls"}, this.compareButton, this.compareHint), fetching, this.views,
      this.export.node, this.numbers.part, this.meanings.part);
    const all = element("section", {className: "all-heads", ariaLabel: "All heads"}, scoring, this.mosaicPart);
    this.result.replaceChildren(all, heads);
    this.mosaicPart.addEventListener("click", event => {
      if (event.pointerType === "touch" && event.target.closest("td[data-name]")) toBeSeen(heads);
    });
    this.result.classList.remove("awaited");
    const onCancel = () => { if (this.reading.running) this.reading.cancel(); };
    this.scoring = new Loading(scoring, this.mosaicPart, {onCancel});
    this.fetching = new Loading(fetching, this.views);
    const upTo = many => Array.from({length: many}, (_, index) => index);
    this.mosaic = new Mosaic(this.mosaicPart, {
      layers: upTo(model.layers), heads: upTo(model.heads),
      onShow: (cell, kept) => this.onShow(cell, kept),
      onColor: ({by, kind, only}) =>
        state.set({by: by === "label" ? null : by, kind: kind === "score" ? null : kind, label: only}, {replace: true}),
    });
  }

  buildForm() {
    this.text = element("textarea", {rows: 2, dir: "auto", spellcheck: false});
    this.text.addEventListener("input", () => this.mark());
    this.text.addEventListener("keydown", event => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    const counted = () => state.set({unit: this.unit.value === "word" ? "word" : null, token: null});
    this.unit = element("select", {onchange: counted},
      element("option", {textContent: "token"}), element("option", {textContent: "word"}));
    const dropped = () => state.set({first_token: this.drop.checked ? "drop" : null});
    this.drop = element("input", {type: "checkbox", onchange: dropped});
    this.length = element("span", {className: "quiet"});
    this.typed = element("span", {className: "quiet", role: "status"});
    const take = text => {
      this.text.value = text;
      this.submit();
    };
    const examples = Object.entries(EXAMPLES).map(([textContent, text]) =>
      element("button", {type: "button", textContent, onclick: () => take(text)}));
    const submit = event => {
      event.preventDefault();
      this.submit();
    };
    return element("form", {className: "asking", onsubmit: submit},
      element("label", {className: "text"}, "Text", this.text),
      element("div", {className: "controls"},
        element("button", {textContent: "Look", className: "look", title: "Ctrl+Enter"}),
        element("label", {}, "Unit ", this.unit),
        element("label", {title: "Takes its column away and renormalises the rest: many heads rest on the first token"},
          this.drop, "Drop the first token (the sink)"), this.length, this.typed),
      element("div", {className: "controls examples", role: "group", ariaLabel: "Examples"},
        element("span", {className: "quiet", textContent: "Examples"}), ...examples));
  }

  start(model) {
    this.answers = new Answers(model);
    this.buildResult(model);
    this.keep();
    this.color();
    this.read();
  }

  // --- the address ---

  get question() {
    const body = {text: state.get("text", FIRST_TEXT)};
    if (state.get("unit") === "word") body.unit = "word";
    if (state.get("first_token") === "drop") body.first_token = "drop";
    return body;
  }

  // The first head where the address names one that is not there
  get kept() {
    const {grid} = this.mosaic, layer = state.integer("layer") ?? FIRST.layer, head = state.integer("head") ?? FIRST.head;
    return grid.at(nameOf({layer, head})) ?? grid.cells[0];
  }

  // A text that is typed and not asked for yet stays
  fillForm(withText = true) {
    const {text, unit, first_token} = this.question;
    if (withText) this.text.value = text;
    this.unit.value = unit ?? "token";
    this.drop.checked = first_token === "drop";
    this.mark();
  }

  // What is typed and not asked for yet is not what is on show
  mark() {
    const typed = this.text.value !== this.question.text;
    this.form.classList.toggle("typed", typed);
    this.typed.textContent = typed ? "Shown is the text before: press Look." : "";
  }

  onState(names) {
    const any = (...some) => some.some(name => names.has(name));
    if (any("text", "unit", "first_token")) {
      this.fillForm(names.has("text"));
      this.stale = true;
    }
    if (!this.mosaic) return;  // `start` reads what the address says by then
    if (any("by", "kind", "label")) this.color();
    if (any("layer", "head", "compare")) this.keep();
    if (any("token")) for (const {view} of [this.left, this.right]) view.hold(state.integer("token"));
    // The other tabs have the same text, and may change it
    if (this.stale && state.get("tab", "attention") === "attention") this.read();
  }

  color() {
    const by = state.get("by", "label"), excess = state.get("kind") === "excess" && by !== "label" && by !== "entropy";
    this.mosaic.color({by, kind: excess ? "excess" : "score", only: state.get("label")});
    this.showLater(this.mosaic.grid.current);
    this.offer();
  }

  keep() {
    const {grid} = this.mosaic, {kept} = this;
    this.compared?.node.classList.remove("compared");
    this.compared = grid.at(state.get("compare"));
    this.compared?.node.classList.add("compared");
    this.left.part.hidden = !this.compared;
    this.views.classList.toggle("two", Boolean(this.compared));
    this.compareButton.textContent = this.compared ? "Show one head" : "Compare with another head";
    this.compareHint.textContent = this.compared === kept ? "Choose the other head in the grid." : "";
    if (grid.pinned !== kept) grid.pin(kept.name);
    this.showLater(kept);
    this.offer();
  }

  onShow(cell, kept) {
    if (kept && cell !== this.kept) state.set({layer: cell.layer, head: cell.head}, {replace: true});
    else this.showLater(cell);
  }

  submit() {
    const text = this.text.value;
    if (!text.trim()) {
      this.reading.fail(new Problem(422, {detail: "The text is empty. Type a sentence, or take an example."}));
      this.text.focus();
    } else if (text !== this.question.text) {
      state.set({...written(edited(marked(), text)), text: text === FIRST_TEXT ? null : text});
    } else if (this.mosaic) this.read();
  }

  // --- asking ---

  read() {
    const {question} = this;
    this.stale = false;
    this.maps = undefined;
    this.fetched = null;
    for (const one of [this.scoring, this.fetching]) one.stop();
    if (this.scored !== question.text) {
      this.scores = this.scored = null;
      this.mosaic.fill(null);
    }
    this.offer();
    return this.reading.run("Reading the text …", async (signal, waiting) => {
      const options = {signal, waiting};
      try {
        const fits = await this.answers.fits(question, options);
        if (fits) this.score(question);
        this.maps = fits ? await this.answers.maps(question, options) : null;
      } catch (error) {
        if (error.name !== "AbortError") {  // what was shown is of another text
          this.result.hidden = true;
          this.length.textContent = "";
        }
        throw advised(error);
      }
      this.result.hidden = false;
      this.show(this.mosaic.grid.current);
      if (!this.maps) this.fetch();
      this.tell();
      await this.mosaic.draw(this.maps);
    });
  }

  score(question) {
    const doing = this.maps === null ? "Scoring the heads: of a long text this takes a while …" : "Scoring the heads …";
    this.scoring.run(doing, async (signal, waiting) => {
      this.scores = await this.answers.scores(question.text, {signal, waiting});
      this.scored = question.text;
      this.mosaic.fill(this.scores);
      this.meanings.fill(this.scores);
      this.show(this.mosaic.grid.current);
      this.tell();
    });
  }

  // Where the text is too long for all maps at once: those of the views alone. Scores wait: they take longer
  fetch() {
    const {question} = this, views = this.viewsOf(this.kept), wanted = views.map(([, {name}]) => name).join();
    if (this.fetched === wanted) return;
    this.fetched = wanted;
    this.scoring.stop();
    for (const [{part}] of views) part.classList.add("awaited");  // its map is of another head or text
    this.fetching.run("Asking for the map …", async (signal, waiting) => {
      try {
        for (const [side, cell] of views) {
          const maps = await this.answers.map(question, cell, {signal, waiting});
          this.showMap(side, maps.of(cell.name));
          this.tell(maps);
        }
      } catch (error) {
        if (this.fetched === wanted) this.fetched = null;
        throw error;
      }
      if (this.scored !== question.text) this.score(question);
    });
  }

  // --- what is shown ---

  // At most once a frame, however fast the pointer goes over the grid
  showLater(cell) {
    if (this.next === null) {
      requestAnimationFrame(() => {
        const last = this.next;
        this.next = null;
        this.show(last);
      });
    }
    this.next = cell;
  }

  // What is said of a head stands above its map: where there is none of a head that is pointed at, the kept one stays
  show(pointed) {
    const {scores, kept, mosaic: {shown}} = this, cell = this.maps ? pointed : kept;
    for (const [side, one] of this.viewsOf(cell)) {
      const head = scores?.byName.get(one.name), note = one === kept && !this.compared ? "kept" : "";
      side.headline.replaceChildren(...head ? scores.headline(head, shown, note) : [element("h2", {textContent: titleOf(one)})]);
      if (this.maps) this.showMap(side, this.maps.of(one.name));
      else if (side.view.map?.name !== one.name) side.part.classList.add("awaited");
    }
    if (this.maps === null && pointed === kept) this.fetch();
    this.numbers.part.hidden = !scores;
    if (scores) this.numbers.fill(scores, scores.byName.get(cell.name), shown.by);
  }

  viewsOf(cell) {
    return [[this.right, cell], ...this.compared ? [[this.left, this.compared]] : []];
  }

  showMap({part, view}, map) {
    part.classList.remove("awaited");
    view.show(map);
    view.hold(state.integer("token"));
  }

  // The other of two views follows, unless it still shows another text
  point(view, token) {
    if (this.compared && (token ?? 0) < view.map?.axis.length) view.point(token);
  }

  // How long the text is, and what the answers warn of
  tell(maps = this.maps) {
    if (maps) this.length.textContent = plural(maps.axis.length, this.question.unit ?? "token");
    const notes = new Set([...maps?.warnings ?? [], ...this.scores?.warnings ?? []].map(one => one.message));
    if (this.maps === null) {
      notes.add(`All maps at once are sent of up to ${plural(this.answers.longest, this.question.unit ?? "token")}. ` +
        "This text is longer: click a head, or press Enter on it, to get its map.");
    }
    const here = note => note.replace(/^text 0\b/, "The text");  // there is one only
    this.warnings.replaceChildren(...[...notes].map(note => element("li", {}, ...prose(here(note)))));
    this.warnings.hidden = !notes.size;
  }

  offer() {
    const {question, compared, kept} = this, {by} = this.mosaic.shown;
    const maps = (compared && compared !== kept ? [compared, kept] : [kept]).map(({layer, head, name}) => ({
      what: `Map of ${name}`, title: `Map of ${name}${name === kept.name ? " (kept)" : ""}`,
      file: `attention-${name}`, path: "v1/attention",
      body: {...question, layers: [layer], heads: [head]},
    }));
    const path = by === "label" ? "v1/heads" : `v1/heads?color=${by}`;
    this.export.offer([...maps, {what: "All heads", file: "heads", path, body: {text: question.text}}], maps);
  }
}

const status = () => element("p", {className: "status", role: "status"});

// After a tap: on a phone the map lies below what was tapped
function toBeSeen(node) {
  if (node.getBoundingClientRect().top < innerHeight / 2) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  node.scrollIntoView({behavior: still ? "auto" : "smooth"});
}

function advised(error) {
  if (!(error instanceof Problem && error.has("text_too_long"))) return error;
  return error.told(`${error.message} Look at a part of it.`);
}

function buildView(className) {
  const headline = element("div", {className: "headline"}), map = element("div");
  return {headline, map, part: element("article", {className}, headline, map)};
}

const NO_EXPLANATION = "Attention is what a head weighs, not why the model answers as it does: a map is no explanation. " +
  "A label says that a score passes its threshold in this text; in another text the same head may do otherwise.";

function buildMeanings() {
  const words = element("dl");
  const fill = scores => words.replaceChildren(...Object.entries(MEANINGS).flatMap(([name, meaning]) => [
    element("dt", {textContent: name}),
    element("dd", {}, meaning, element("span", {className: "hint", textContent: scores ? ` ${scores.numbers(name)}` : ""})),
  ]));
  fill(null);
  const part = element("details", {className: "meanings"}, element("summary", {textContent: "What do the words mean?"}),
    element("p", {textContent: NO_EXPLANATION}), words);
  return {fill, part};
}

function buildNumbers() {
  const names = element("thead"), rows = element("tbody");
  const legend = element("p", {className: "hint"}, element("span", {className: "tick"}), " baseline \u2002 ",
    element("span", {className: "tick threshold"}), " threshold");
  const region = {className: "table", role: "region", ariaLabel: "All scores of the head", tabIndex: 0};
  const table = element("div", region, element("table", {}, names, rows), legend);
  return {
    part: element("details", {open: true, hidden: true}, element("summary", {textContent: "All scores of the head"}), table),
    fill(scores, head, by) {
      names.replaceChildren(scores.header());
      rows.replaceChildren(...scores.rows(head, by));
    },
  };
}
