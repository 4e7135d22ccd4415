// Who chooses what: all heads, one of them, position alone, chance, and what the model itself expects

import {element, format, prose, visible} from "./common.js";
import {nameOf} from "./grid.js";
import {
  badge, badged, bar, header, lettered, nameOfCandidate, percent, scrolled, UNDECIDED, withLetters,
} from "./candidates.js";

const CAUTION = "Attention says where a head looks, not what the model takes the pronoun to mean. " +
  "One sentence selects no head: of heads that toss a coin many are right too.";
const EXPECTATION = "The model’s expectation: log-probability, in nats, of what follows with each candidate in the pronoun’s place " +
  "(method “substitution”); nearer to 0 is likelier. It reads the whole sentence; a head’s row ends at the pronoun.";

const dot = () => element("span", {className: "dot", textContent: "●", title: "chosen"});
const rightOrWrong = is => is === undefined ? "" : is ? "✓" : "✗";

// How many heads choose each candidate, and how many none
export function countsOf({heads, candidates}) {
  const counts = Object.fromEntries([...candidates.keys(), UNDECIDED].map(key => [key, 0]));
  for (const {predicted} of heads) counts[predicted ?? UNDECIDED] += 1;
  return counts;
}

export class Verdict {
  constructor(root) {
    this.summary = element("p", {className: "summary", role: "status"});
    this.table = element("table", {className: "choosers"});
    this.expecting = element("p", {className: "status", role: "status"});
    this.twin = element("p", {className: "twin"});
    this.warnings = element("ul");
    root.append(this.summary, element("div", {className: "verdict"},
      element("div", {}, scrolled("Who chooses what", this.table), element("p", {className: "hint", textContent: EXPECTATION}),
        this.expecting, this.twin),
      element("section", {className: "notes", ariaLabel: "Before you read a number"},
        element("h2", {textContent: "Before you read a number"}), this.warnings)));
  }

  // One result of POST /v1/coreference with all heads; `gold` the index of the right candidate, or null
  show(result, gold) {
    Object.assign(this, {result, gold, expected: null, counts: countsOf(result)});
    this.twin.textContent = "";
    this.warnings.replaceChildren(...result.warnings.map(warning), element("li", {textContent: CAUTION}));
    this.#summarize();
  }

  // The head that is pointed at
  point(head) {
    this.head = head;
    this.#draw();
  }

  // The result of the same marks by substitution
  expect({substitution, warnings}) {
    this.expected = substitution;
    const said = new Set(this.result.warnings.map(({code}) => code));
    this.warnings.append(...warnings.filter(({code}) => !said.has(code)).map(warning));
    this.#draw();
  }

  // Beside its twin, with the result and the expectation of that: what changes?
  compare({text, gold, result, expected}) {
    const there = new Map(result.heads.map(head => [nameOf(head), head.predicted]));
    const both = this.result.heads.map(head => [head.predicted, there.get(nameOf(head))]);
    const same = both.filter(([a, b]) => a === b && a !== null).length;
    const right = this.gold === null ? "" : `; ${both.filter(([a, b]) => a === this.gold && b === gold).length} are right in both`;
    const noun = ({candidates}, index) => index === null ? "neither" : `“${nameOfCandidate(candidates[index])}”`;
    this.twin.replaceChildren(element("strong", {textContent: "Its twin: "}), element("bdi", {textContent: `“${visible(text)}”`}),
      ` ${same} of ${both.length} heads choose the same place in the text in both sentences${right}. ` +
      `The model’s own expectation: here ${noun(this.result, this.expected.predicted)}, there ${noun(result, expected.predicted)}.`);
  }

  #summarize() {
    const {heads, candidates} = this.result, {counts, gold} = this;
    const parts = candidates.map((_, index) => `${counts[index]} attend most to ${lettered(this.result, index)}`);
    if (counts[UNDECIDED]) parts.push(`${counts[UNDECIDED]} to none`);
    const right = gold === null ? "" : ` ${counts[gold]} (${percent(counts[gold] / heads.length)}) are right; ` +
      `by chance it would be ${percent(1 / candidates.length)}.`;
    this.summary.textContent = `Of ${heads.length} heads ${parts.join(", ")}.${right}`;
  }

  #draw() {
    const {candidates, heads, baselines} = this.result, {counts, gold, head, expected} = this, known = gold !== null;
    const row = (name, cells, judged = "", className = "") => element("tr", {className}, header("row", name),
      ...cells.map(cell => element("td", {}, ...[cell].flat())), ...known ? [element("td", {}, judged)] : []);
    const rule = (name, chosen) =>
      row(name, [...candidates.map((_, index) => index === chosen ? dot() : ""), ""], rightOrWrong(chosen === gold));
    const share = key => counts[key] / heads.length;
    const counted = (_, index) => [bar(share(index), index), String(counts[index]),
      element("span", {className: "quiet", textContent: ` ${percent(share(index))}`})];
    const scored = ({scores, predicted}, digits) => [
      ...scores.map((score, index) => [...index === predicted ? [dot(), " "] : [], score === null ? "–" : digits(score)]),
      predicted === null ? dot() : ""];
    const nats = value => value.toFixed(2).replace("-", "−");
    const columns = candidates.map((candidate, index) =>
      header("col", ...badged(candidate, index), index === gold ? " ✓" : ""));
    this.table.replaceChildren(
      element("thead", {}, element("tr", {}, element("td"), ...columns, header("col", "none"), ...known ? [header("col", "right")] : [])),
      element("tbody", {},
        rule("First noun", baselines.first),
        rule("Nearest noun", baselines.nearest),
        row("By chance", [...candidates.map(() => percent(1 / candidates.length)), ""], percent(1 / candidates.length)),
        row(`All ${heads.length} heads`, [...candidates.map(counted), String(counts[UNDECIDED])], known ? percent(share(gold)) : "", "all"),
        row(`Head ${nameOf(head)}`, scored(head, format), rightOrWrong(head.correct), "shown"),
        row("The model’s expectation", expected ? scored(expected, nats) : [...candidates.map(() => "…"), ""],
          rightOrWrong(expected?.correct))));
  }
}

// A candidate that it begins with has its badge in place of its number
function warning({message}) {
  const [begin, index] = message.match(/^candidate (\d+) /) ?? [""], rest = withLetters(message.slice(begin.length));
  const named = index === undefined ? [] : [badge(Number(index)), " "];
  return element("li", {}, ...named, ...prose(named.length ? rest : rest.charAt(0).toUpperCase() + rest.slice(1)));
}
