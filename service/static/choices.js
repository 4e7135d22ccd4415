// What every head chooses for a pronoun, beside what position alone and the model's own expectation choose

import {beginning, element, format, visible} from "./common.js";
import {HeadGrid, nameOf} from "./grid.js";
import {badge, choiceClass} from "./marker.js";
import {letterOf} from "./spans.js";

const STRENGTHS = {margin: "margin over the second", weight: "weight of the chosen one"};
const LISTED = 5;  // heads that attend most to a candidate
const LONGEST_NAME = 40;
const UNDECIDED = "none";

const SCALE = [0.01, 0.1, 0.5, 1];  // of the legend
const depth = value => Math.sqrt(Math.min(1, Math.max(0, value)));  // most weights are small
const percent = share => `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;
const nameIn = ({text}) => visible(beginning(text, LONGEST_NAME));
const header = (scope, ...content) => element("th", {scope}, ...content);
const right = is => is === undefined ? "" : is ? "✓" : "✗";

export class Choices {
  // `onKeep(layer, head)` is told of the head that the user keeps; `mapOf(layer, head)` is the address of its map
  constructor(root, {onKeep, mapOf}) {
    Object.assign(this, {onKeep, mapOf, only: null, grid: null, kept: null});
    this.summary = element("p", {className: "summary", role: "status"});
    this.table = element("table", {className: "choosers"});
    this.twin = element("p", {className: "twin"});
    this.warnings = element("ul");
    this.notes = element("section", {className: "notes", ariaLabel: "Before you read a number"},
      element("h2", {textContent: "Before you read a number"}), this.warnings);
    this.legend = element("div", {className: "legend", role: "group", ariaLabel: "Choices: press one to see only its heads"});
    this.strength = element("select", {onchange: () => this.#paint()}, ...Object.entries(STRENGTHS).map(([value, textContent]) => element("option", {value, textContent})));
    this.holder = element("div", {className: "map"});
    this.head = element("section", {className: "head", ariaLabel: "The head"});
    this.strongest = element("dl", {className: "strongest"});
    const expectation = element("p", {className: "hint", textContent: "The model’s expectation: log-probability, in nats, of what follows with each candidate in the " +
      "pronoun’s place (method “substitution”); nearer to 0 is likelier. It reads the whole sentence; a head’s row ends at the pronoun."});
    root.append(this.summary, element("div", {className: "verdict"}, element("div", {},
      scrolled("Who chooses what", this.table), expectation, this.twin), this.notes),
      element("div", {className: "controls"}, this.legend, element("label", {}, "Strength", this.strength)),
      element("div", {className: "grid-and-head"}, this.holder, element("div", {}, this.head,
        element("h2", {textContent: "Heads that attend most to each"}), this.strongest)));
    this.strongest.addEventListener("click", event => { if (event.target.value) this.grid.pin(event.target.value); });
  }

  // One result of POST /v1/coreference with all heads; `gold` the index of the right candidate, or null
  show(result, gold) {
    Object.assign(this, {result, gold, expected: null});
    this.byName = new Map(result.heads.map(head => [nameOf(head), head]));
    this.counts = countsOf(result);
    if (!this.#fits(this.only)) this.only = null;
    this.warnings.replaceChildren(...result.warnings.map(({message}) => element("li", {textContent: visible(message)})),
      element("li", {textContent: "Attention says where a head looks, not what the model takes the pronoun to mean. One sentence selects no head: " +
        "of heads that toss a coin many are right too."}));
    this.twin.textContent = "";
    this.#buildGrid();
    this.#summarize();
    this.#showLegend();
    this.#showStrongest();
    this.#paint();
  }

  // What the model itself finds likely in the pronoun's place: the result of the same marks by substitution
  expect({substitution, warnings}) {
    this.expected = substitution;
    const said = new Set(this.result.warnings.map(({code}) => code));
    this.warnings.append(...warnings.filter(({code}) => !said.has(code)).map(({message}) => element("li", {textContent: visible(message)})));
    this.#showTable();
  }

  // Beside the twin's result: who changes his mind?
  compare({name, result, expected}, gold) {
    const there = new Map(result.heads.map(head => [nameOf(head), head]));
    const both = this.result.heads.map(head => [head, there.get(nameOf(head))]), count = test => both.filter(test).length;
    const same = count(([a, b]) => a.predicted === b.predicted && a.predicted !== null);
    const rightIn = count(([a, b]) => a.predicted === this.gold && b.predicted === gold && this.gold !== null && gold !== null);
    const noun = ({candidates}, index) => index === null ? "neither" : `“${nameIn(candidates[index])}”`;
    this.twin.replaceChildren(element("strong", {textContent: "Its twin: "}), element("bdi", {textContent: `“${visible(name)}” `}),
      `${same} of ${both.length} heads choose the same place in the text in both sentences; ${rightIn} are right in both. ` +
      (expected && this.expected ? `The model’s own expectation: here ${noun(this.result, this.expected.predicted)}, there ${noun(result, expected.predicted)}.` : ""));
  }

  keep(layer, head) {
    const name = this.byName.has(nameOf({layer, head})) ? nameOf({layer, head}) : this.byName.has("L5H5") ? "L5H5" : nameOf(this.result.heads[0]);
    this.kept = name;
    this.grid.pin(name);
  }

  #buildGrid() {
    const layers = [...new Set(this.result.heads.map(head => head.layer))], heads = [...new Set(this.result.heads.map(head => head.head))];
    if (this.grid?.rows.length === layers.length && this.grid.rows[0].length === heads.length) return;
    const table = element("table", {role: "grid", ariaLabel: "Heads: arrow keys move, Enter keeps"},
      element("caption", {textContent: "layers ↓  heads →"}));
    const hint = element("p", {className: "hint"}, "Letter: the candidate that the head attends to most; lower case: within noise, another machine may decide otherwise. Colour: ",
      ...SCALE.map(swatch), ". Point at a head, or move with the arrow keys; click or Enter keeps it.");
    this.holder.replaceChildren(table, hint);
    this.grid = new HeadGrid(table, {layers, heads, sticky: true, onShow: (cell, kept) => {
      this.#describe(this.byName.get(cell.name), kept);
      if (!kept || this.kept === cell.name) return;
      this.kept = cell.name;
      this.onKeep(cell.layer, cell.head);
    }});
  }

  #text(index) {
    return `${letterOf(index)} “${nameIn(this.result.candidates[index])}”`;
  }

  #said(head) {
    if (head.predicted === null) return head.tie ? "a tie" : "no choice";
    return `${this.#text(head.predicted)}, ${format(head.scores[head.predicted])}`;
  }

  // --- who chooses what ---

  #summarize() {
    const {heads, candidates} = this.result, rightHeads = this.gold === null ? null : this.counts[this.gold];
    const parts = candidates.map((_, index) => `${this.counts[index]} attend most to ${this.#text(index)}`);
    this.summary.textContent = `Of ${heads.length} heads ${parts.join(", ")}` +
      (this.counts[UNDECIDED] ? `, ${this.counts[UNDECIDED]} to none` : "") + "." +
      (rightHeads === null ? "" : ` ${rightHeads} (${percent(rightHeads / heads.length)}) are right; by chance it would be ${percent(1 / candidates.length)}.`);
  }

  #showTable() {
    const {candidates, heads, baselines} = this.result, known = this.gold !== null;
    const dot = () => element("span", {className: "dot", textContent: "●", title: "chosen"});
    const row = (name, cells, judged, className = "") => element("tr", {className}, header("row", name),
      ...cells.map(cell => element("td", {}, ...[cell].flat())), ...known ? [element("td", {className: "judged"}, judged)] : []);
    const rule = (name, chosen) => row(name, [...candidates.map((_, i) => i === chosen ? dot() : ""), ""], right(known ? chosen === this.gold : undefined));
    const share = 1 / candidates.length, shareOf = key => this.counts[key] / heads.length;
    const count = key => [bar(shareOf(key), key), `${this.counts[key]}`, element("span", {className: "quiet", textContent: ` ${percent(shareOf(key))}`})];
    const scored = ({scores, predicted}, digits) => [...scores.map((score, i) => [...i === predicted ? [dot(), " "] : [], score === null ? "–" : digits(score)]), predicted === null ? dot() : ""];
    const {expected, shown} = this;
    this.table.replaceChildren(
      element("thead", {}, element("tr", {}, element("td"), ...candidates.map((candidate, index) => header("col", badge(index), " ",
        element("bdi", {textContent: nameIn(candidate)}), index === this.gold ? " ✓" : "")), header("col", "none"), ...known ? [header("col", "right")] : [])),
      element("tbody", {},
        rule("First noun", baselines.first),
        rule("Nearest noun", baselines.nearest),
        row("By chance", [...candidates.map(() => percent(share)), ""], percent(share)),
        row(`All ${heads.length} heads`, [...candidates.map((_, i) => count(i)), `${this.counts[UNDECIDED]}`], known ? percent(shareOf(this.gold)) : "", "all"),
        row(`Head ${nameOf(shown)}`, scored(shown, format), right(shown.correct), "shown"),
        row("The model’s expectation", expected ? scored(expected, value => `${value.toFixed(2).replace("-", "−")}`) : [...candidates.map(() => "…"), ""], expected ? right(expected.correct) : "")));
  }

  // --- the grid ---

  #fits(only) {
    return only === UNDECIDED || only < this.result.candidates.length;
  }

  #showLegend() {
    const entry = (key, sign, name) => element("button", {type: "button", value: String(key), disabled: !this.counts[key], ariaPressed: String(this.only === key),
      onclick: () => {
        this.only = this.only === key ? null : key;
        for (const button of this.legend.children) button.ariaPressed = String(button.value === String(this.only));
        this.#paint();
      }}, sign, element("bdi", {textContent: name}), element("span", {className: "quiet", textContent: this.counts[key]}));
    this.legend.replaceChildren(...this.result.candidates.map((candidate, index) =>
      entry(index, badge(index), nameIn(candidate) + (index === this.gold ? " ✓" : ""))),
      entry(UNDECIDED, element("span", {className: "badge undecided", textContent: "–"}), "none or a tie"));
  }

  #paint() {
    const kind = this.strength.value;
    this.grid.paint(cell => {
      const head = this.byName.get(cell.name), {predicted, within_noise: noise} = head, chosen = predicted !== null;
      const value = !chosen ? 0 : kind === "weight" || head.margin === null ? head.scores[predicted] : head.margin;
      cell.node.className = `${chosen ? choiceClass(predicted) : "undecided"}${noise ? " noisy" : ""}` +
        `${this.only === null || this.only === (predicted ?? UNDECIDED) ? "" : " dim"}`;
      cell.node.classList.toggle("current", cell === this.grid.current);
      cell.node.style.setProperty("--strength", depth(value));
      cell.node.textContent = !chosen ? "–" : noise ? letterOf(predicted).toLowerCase() : letterOf(predicted);
      cell.node.ariaLabel = `Layer ${head.layer}, head ${head.head}: ${this.#said(head)}${noise ? ", within noise" : ""}${head.correct === undefined ? "" : head.correct ? ", right" : ", wrong"}`;
    });
  }

  // --- one head ---

  #describe(head, kept) {
    this.shown = head;
    const {candidates} = this.result, total = head.scores.reduce((sum, score) => sum + (score ?? 0), 0);
    const rank = index => 1 + this.result.heads.filter(other => (other.scores[index] ?? -1) > head.scores[index]).length;
    const cell = content => element("td", {}, content);
    const row = (score, index) => element("tr", {className: index === head.predicted ? "chosen" : ""},
      header("row", badge(index), " ", element("bdi", {textContent: nameIn(candidates[index])})),
      ...score === null ? [cell("–"), cell(""), cell("–"), cell("–")] :
        [element("td", {textContent: format(score), title: String(score)}), cell(bar(score, index)), cell(total > 0 ? percent(score / total) : "–"), cell(`${rank(index)} of ${this.result.heads.length}`)]);
    const inside = candidates.some(candidate => candidate.has_first_token) && head.mass_on_candidates >= head.mass_on_first_token;
    const rest = Math.max(0, 1 - head.mass_on_candidates - (inside ? 0 : head.mass_on_first_token));
    this.head.replaceChildren(
      element("h2", {}, `Layer ${head.layer}, head ${head.head}`, element("span", {className: "quiet", textContent: kept ? " · kept" : ""})),
      element("p", {}, head.predicted === null ? `It makes no choice${head.tie ? ": a tie" : ""}.` : `From the pronoun it attends most to ${this.#text(head.predicted)}.`,
        head.margin === null ? "" : ` Margin ${format(head.margin)}${head.within_noise ? ", within noise: another machine may decide otherwise" : ""}.`,
        head.correct === undefined ? "" : head.correct ? " ✓ right" : " ✗ wrong"),
      scrolled("The head’s weights", element("table", {className: "weights"}, element("thead", {}, element("tr", {},
        ...["candidate", "weight", "", "share of them", "rank among heads"].map(name => name ? header("col", name) : element("td")))), element("tbody", {}, ...head.scores.map(row)))),
      element("p", {className: "quiet", textContent: `Of the pronoun’s whole row: ${format(head.mass_on_candidates)} on the candidates, ` +
        `${format(head.mass_on_first_token)} on the first token${inside ? " (which is one of theirs)" : ""}, ${format(rest)} elsewhere.`}),
      element("p", {}, element("a", {href: this.mapOf(head.layer, head.head), textContent: "See this head’s map"})));
    this.#showTable();
  }

  #showStrongest() {
    this.strongest.replaceChildren(...this.result.candidates.map((candidate, index) => {
      const best = this.result.heads.filter(head => head.scores[index] > 0).sort((a, b) => b.scores[index] - a.scores[index]).slice(0, LISTED);
      return element("div", {}, element("dt", {}, badge(index), " ", element("bdi", {textContent: nameIn(candidate)})), ...best.map(head => element("dd", {},
        element("button", {type: "button", value: nameOf(head), textContent: nameOf(head)}), element("span", {className: "quiet", textContent: format(head.scores[index]), title: String(head.scores[index])}))));
    }));
  }
}

function bar(share, key) {
  const filled = element("i", {className: key === UNDECIDED ? "" : choiceClass(key)});
  filled.style.width = `${100 * Math.min(1, share)}%`;
  return element("span", {className: "bar"}, filled);
}

function swatch(value) {
  const node = element("span", {className: `swatch ${choiceClass(0)}`, textContent: value});
  node.style.setProperty("--strength", depth(value));
  return node;
}

function scrolled(name, table) {
  return element("div", {className: "table", role: "region", ariaLabel: name, tabIndex: 0}, table);
}

// How many heads choose each candidate, and how many none
function countsOf({heads, candidates}) {
  const counts = Object.fromEntries([...candidates.keys(), UNDECIDED].map(key => [key, 0]));
  for (const {predicted} of heads) counts[predicted ?? UNDECIDED] += 1;
  return counts;
}
