// What every head chooses for a pronoun: on the grid, and one head's numbers

import {element, format, unique} from "./common.js";
import {HeadGrid, nameOf, titleOf} from "./grid.js";
import {badge, badged, bar, choiceClass, header, lettered, letterOf, nameOfCandidate, percent, scrolled, UNDECIDED} from "./candidates.js";
import {countsOf} from "./verdict.js";

const FIRST = "L5H5";  // the pronoun head of the article
const STRENGTHS = {margin: "margin over the second", weight: "weight of the chosen one"};
const SCALE = [0.01, 0.1, 0.5, 1];  // of the legend
const LISTED = 5;  // heads that attend most to a candidate

const depth = value => Math.sqrt(Math.min(1, Math.max(0, value)));  // most weights are small

function swatch(value) {
  const node = element("span", {className: `swatch ${choiceClass(0)}`, textContent: value});
  node.style.setProperty("--strength", depth(value));
  return node;
}

export class Choices {
  // `onPoint(head)` is told of the head that is shown, `onKeep(layer, head)` of one that the user keeps; `mapOf(layer, head)`
  // is the address of its map
  constructor(root, {onPoint, onKeep, mapOf}) {
    Object.assign(this, {onPoint, onKeep, mapOf, only: null, grid: null, kept: null});
    this.legend = element("div", {className: "legend", role: "group", ariaLabel: "Choices: press one to see only its heads"});
    this.strength = element("select", {onchange: () => this.#paint()},
      ...Object.entries(STRENGTHS).map(([value, textContent]) => element("option", {value, textContent})));
    this.holder = element("div", {className: "map"});
    this.head = element("section", {className: "head", ariaLabel: "The head"});
    this.strongest = element("dl", {className: "strongest"});
    root.append(
      element("div", {className: "controls"}, this.legend, element("label", {}, "Strength", this.strength)),
      element("div", {className: "grid-and-head"}, this.holder,
        element("div", {}, this.head, element("h2", {textContent: "Heads that attend most to each"}), this.strongest)));
    this.strongest.addEventListener("click", event => { if (event.target.value) this.grid.pin(event.target.value); });
  }

  // One result of POST /v1/coreference with all heads
  show(result) {
    this.result = result;
    this.byName = new Map(result.heads.map(head => [nameOf(head), head]));
    this.counts = countsOf(result);
    if (!this.counts[this.only]) this.only = null;
    this.#buildGrid();
    this.#showLegend();
    this.#showStrongest();
    this.#paint();
  }

  keep(layer, head) {
    this.kept = [nameOf({layer, head}), FIRST].find(name => this.byName.has(name)) ?? nameOf(this.result.heads[0]);
    this.grid.pin(this.kept);
  }

  #buildGrid() {
    const layers = unique(this.result.heads.map(head => head.layer)), heads = unique(this.result.heads.map(head => head.head));
    if (this.grid?.cells.length === layers.length * heads.length) return;
    const table = element("table");
    this.holder.replaceChildren(table, element("p", {className: "hint"},
      "Letter: the candidate that the head attends to most; lower case: within noise, another machine may decide otherwise. ",
      element("span", {className: "scale"}, "Colour: ", ...SCALE.map(swatch)), ". Point at a head, or move with the arrow keys; click or Enter keeps it."));
    this.grid = new HeadGrid(table, {layers, heads, sticky: true, onShow: (cell, kept) => {
      this.#describe(this.byName.get(cell.name), kept);
      if (!kept || this.kept === cell.name) return;
      this.kept = cell.name;
      this.onKeep(cell.layer, cell.head);
    }});
  }

  // --- the grid ---

  #showLegend() {
    const entry = (key, sign, name) => element("button", {
      type: "button", value: String(key), disabled: !this.counts[key], ariaPressed: String(this.only === String(key)),
    }, sign, element("bdi", {textContent: name}), element("span", {className: "quiet", textContent: this.counts[key]}));
    this.legend.replaceChildren(
      ...this.result.candidates.map((candidate, index) => entry(index, badge(index), nameOfCandidate(candidate))),
      entry(UNDECIDED, element("span", {className: "badge undecided", textContent: "–"}), "none or a tie"));
    for (const button of this.legend.children) button.addEventListener("click", () => this.#filter(button.value));
  }

  #filter(key) {
    this.only = this.only === key ? null : key;
    for (const button of this.legend.children) button.ariaPressed = String(button.value === this.only);
    this.#paint();
  }

  #paint() {
    this.grid.paint(({node, name}) => {
      const head = this.byName.get(name), {predicted, margin, scores, within_noise: noisy} = head, chosen = predicted !== null;
      const value = !chosen ? 0 : this.strength.value === "weight" ? scores[predicted] : margin ?? scores[predicted];
      const classes = [chosen ? choiceClass(predicted) : "undecided", noisy && "noisy",
        this.only !== null && this.only !== String(predicted ?? UNDECIDED) && "dim", node.classList.contains("current") && "current"];
      node.className = classes.filter(Boolean).join(" ");
      node.style.setProperty("--strength", depth(value));
      node.textContent = !chosen ? "–" : noisy ? letterOf(predicted).toLowerCase() : letterOf(predicted);
      node.ariaLabel = `${titleOf(head)}: ${this.#said(head)}`;
    });
  }

  #said({predicted, tie, scores, within_noise: noisy, correct}) {
    const chosen = predicted !== null ? `${lettered(this.result, predicted)}, ${format(scores[predicted])}` : tie ? "a tie" : "no choice";
    return chosen + (noisy ? ", within noise" : "") + (correct === undefined ? "" : correct ? ", right" : ", wrong");
  }

  // --- one head ---

  #describe(head, kept) {
    const {predicted, margin, tie, correct} = head;
    const chosen = predicted !== null ? `From the pronoun it attends most to ${lettered(this.result, predicted)}.` :
      `It makes no choice${tie ? ": a tie" : ""}.`;
    const noise = head.within_noise ? ", within noise: another machine may decide otherwise" : "";
    this.head.replaceChildren(
      element("h2", {}, titleOf(head),
        element("span", {className: "quiet", textContent: kept ? " · kept" : ""})),
      element("p", {}, chosen, margin === null ? "" : ` Margin ${format(margin)}${noise}.`,
        correct === undefined ? "" : correct ? " ✓ right" : " ✗ wrong"),
      scrolled("The head’s weights", this.#weights(head)),
      element("p", {className: "quiet", textContent: this.#masses(head)}),
      element("p", {}, element("a", {href: this.mapOf(head.layer, head.head), textContent: "See this head’s map"})));
    this.onPoint(head);
  }

  #weights({scores, predicted}) {
    const {candidates, heads} = this.result, total = scores.reduce((sum, score) => sum + (score ?? 0), 0);
    const rank = index => 1 + heads.filter(other => (other.scores[index] ?? -1) > scores[index]).length;
    const cell = content => element("td", {}, content);
    const numbers = (score, index) => score === null ? [cell("–"), cell(""), cell("–"), cell("–")] : [
      element("td", {textContent: format(score), title: String(score)}), cell(bar(score, index)),
      cell(total > 0 ? percent(score / total) : "–"), cell(`${rank(index)} of ${heads.length}`)];
    const names = ["candidate", "weight", "", "share of them", "rank among heads"];
    return element("table", {className: "weights"},
      element("thead", {}, element("tr", {}, ...names.map(name => name ? header("col", name) : element("td")))),
      element("tbody", {}, ...scores.map((score, index) => element("tr", {className: index === predicted ? "chosen" : ""},
        header("row", ...badged(candidates[index], index)), ...numbers(score, index)))));
  }

  #masses({mass_on_candidates: mass, mass_on_first_token: first}) {
    // Token 0 counts among the candidates' where one holds it and it was not left out
    const inside = this.result.candidates.some(candidate => candidate.has_first_token) && mass >= first;
    const rest = Math.max(0, 1 - mass - (inside ? 0 : first));
    return `Of the pronoun’s whole row: ${format(mass)} on the candidates, ${format(first)} on the first token` +
      `${inside ? " (which is one of theirs)" : ""}, ${format(rest)} elsewhere.`;
  }

  #showStrongest() {
    const {heads, candidates} = this.result;
    this.strongest.replaceChildren(...candidates.map((candidate, index) => {
      const best = heads.filter(head => head.scores[index] > 0).sort((a, b) => b.scores[index] - a.scores[index]);
      return element("div", {}, element("dt", {}, ...badged(candidate, index)), ...best.slice(0, LISTED).map(head => element("dd", {},
        element("button", {type: "button", value: nameOf(head), textContent: nameOf(head)}),
        element("span", {className: "quiet", textContent: format(head.scores[index]), title: String(head.scores[index])}))));
    }));
  }
}
