// The scores of heads, an answer of POST /v1/heads: how they colour the grid, and the numbers of one head

import {element, format, unique} from "./common.js";
import {nameOf, titleOf} from "./grid.js";

// Of every label. The service's pictures have the same: LABEL_COLORS in head_grid.py says what they were chosen for
const COLORS = {
  sink: "#c0c1ff", first_token: "#55cc99", previous_token: "#cfa800", offset_2: "#7700dd", offset_3: "#aa55ff",
  current_token: "#ffd133", duplicate_token: "#e663c5", induction: "#e04b14", punctuation: "#774400",
  local: "#009177", broad: "#146095",
};
// Of every number that cells can be coloured by; null for a share, from 0 to 1
export const UNITS = {
  entropy: "nats", sink: null, first_token: null, previous_token: null, offset_2: null, offset_3: null, current_token: null,
  duplicate_token: null, induction: null, punctuation: null, local: null, broad: null, distance: "tokens", custom: null,
};
const STATUS = {
  not_applicable: ["not applicable", "no row has a key that counts"],
  too_short: ["too short", "fewer tokens or rows than the score needs to carry a label"],
};
const NONE = "no label";
// What a high score says, in plain words
export const MEANINGS = {
  sink: "Looks at the first token: many heads rest there when they have nothing to say.",
  first_token: "Looks at the first token, the first row counted too; carries no label.",
  previous_token: "Looks one token back.",
  offset_2: "Looks two tokens back.",
  offset_3: "Looks three tokens back.",
  current_token: "Looks at the token itself.",
  duplicate_token: "Looks at where the same token stood before.",
  induction: "Looks at what came after the same token before: it could continue a repetition.",
  punctuation: "Looks at punctuation marks.",
  local: "Looks at the last four tokens, itself among them.",
  broad: "Spreads over many tokens instead of choosing few.",
  distance: "How many tokens back it looks on average; carries no label.",
  coreference: "Looks from a pronoun at what it stands for: see the tab Pronouns.",
  custom: "Has the pattern that was asked about.",
  entropy: "How widely it spreads, in nats: 0 is one token alone.",
  [NONE]: "Passes the threshold of no label.",
};
const COLUMNS = {
  "score": "what the formula gives for this head and text",
  "baseline": "the score of a head that attends to all tokens alike",
  "excess": "score less baseline",
  "argmax rate": "the share of the rows whose largest weight is where the score looks",
  "rows": "how many rows the score is a mean of",
  "status": "whether the text is long enough for the score to count",
  "sd": "the standard deviation over the texts",
  "95 % interval": "of the mean over the texts",
  "n": "how many texts count",
  "agree": "in how many texts the head carries the label",
};

// What is on show is `{by, kind, only}`: what gives the colours ("label" or a score's name), the score's "score" or
// "excess", and the label whose heads alone are lit, or null
export class Scores {
  constructor({heads, definitions, summary, warnings}) {
    Object.assign(this, {heads, definitions, warnings, labels: summary.labels, ranges: new Map()});
    this.byName = new Map(heads.map(head => [nameOf(head), head]));
    this.names = Object.keys(heads[0].scores);
    this.measures = [...this.names.filter(name => name in UNITS), "entropy"];
    this.pooled = this.names.some(name => "n" in heads[0].scores[name]);
    this.agreeing = "texts_agreeing" in heads[0];
  }

  // One number of a head: of a score, or its entropy, which has none but itself
  number(head, name, kind = "score") {
    return name === "entropy" ? head.entropy : head.scores[name][kind];
  }

  status(head, name) {
    if (name === "entropy") return head.entropy === null ? "not_applicable" : "ok";
    return head.scores[name].status;
  }

  // From where to where colours and bars go. Shares have a fixed range, so that texts compare
  range(name, kind) {
    const place = `${name} ${kind}`;
    if (!this.ranges.has(place)) {
      const kinds = name === "entropy" || kind === "excess" ? [kind] : [kind, "baseline"];
      const sizes = this.heads.flatMap(head => kinds.map(one => Math.abs(this.number(head, name, one) ?? 0)));
      const largest = UNITS[name] ? sizes.reduce((a, b) => Math.max(a, b)) || 1 : 1;
      this.ranges.set(place, [kind === "excess" ? -largest : 0, largest]);
    }
    return this.ranges.get(place);
  }

  // A cell of the grid; `mixed` draws several labels as one image
  paint({name, node}, {by, kind, only}, mixed = stripes) {
    const head = this.byName.get(name), byLabel = by === "label";
    const states = (byLabel ? Object.keys(this.labels) : [by]).map(one => this.status(head, one));
    const status = node.dataset.status = states.includes("ok") ? "ok" : states[0];
    const value = byLabel ? null : this.number(head, by, kind);
    const colored = value === null ? "" : shade(value, this.range(by, kind));
    node.style.backgroundImage = byLabel ? mixed(head.labels.map(colorOf)) : colored;
    node.classList.toggle("missing", status !== "ok");
    node.classList.toggle("outlined", !byLabel && head.labels.includes(by));
    node.classList.toggle("borderline", byLabel ? head.borderline.length > 0 : head.borderline.includes(by));
    node.classList.toggle("dim", only !== null && !carries(head, only));
    const told = () => byLabel ? head.labels.join(", ") || NONE : `${by} ${kind} ${format(value)}`;
    const said = status === "ok" ? told() : STATUS[status].join(": ");
    node.ariaLabel = `${titleOf(head)}: ${said}`;
  }

  // How a score is computed
  numbers(name) {
    const {formula, baseline, threshold} = this.definitions[name] ?? {};
    const told = [["Formula", formula], ["baseline", baseline], ["threshold", threshold]];
    return told.filter(([, value]) => value != null).map(([what, value]) => `${what}: ${value}`).join("; ");
  }

  // What it means, in plain words and numbers
  about(name) {
    return [MEANINGS[name], this.numbers(name)].filter(Boolean).join(" ");
  }

  // A button for each label, with how many heads carry it
  legend() {
    const without = this.heads.filter(head => !head.labels.length).length;
    const counts = [...Object.entries(this.labels), [NONE, {count: without, fraction: without / this.heads.length}]];
    return counts.map(([label, {count, fraction}]) => {
      const share = count ? `· ${(100 * fraction).toFixed(1)} %` : "";
      return labelButton(label, count, share, {
        disabled: !count, title: `${count} of ${this.heads.length} heads. ${this.about(label)}`,
      });
    });
  }

  // What the colours and marks of the painted cells mean
  scale(cells, {by, kind}) {
    const keys = [], parts = [];
    const seen = className => cells.some(({node}) => node.classList.contains(className));
    if (by !== "label") {
      const range = this.range(by, kind), bar = element("span", {className: "bar"});
      const [low, zero] = range[0] < 0 ? ["rgb(var(--below))", "50%"] : ["transparent", "0%"];
      bar.style.backgroundImage = `linear-gradient(90deg, ${low}, transparent ${zero}, rgb(var(--heat)))`;
      const unit = UNITS[by] ? ` ${UNITS[by]}` : "";
      const end = value => element("span", {textContent: `${Number(value.toFixed(3))}${unit}`, title: String(value)});
      parts.push(end(range[0]), bar, end(range[1]));
      const baseline = by === "entropy" ? null : kind === "excess" ? 0 : this.heads[0].scores[by].baseline;  // the same for all heads
      if (baseline !== null) {
        bar.append(tick("", baseline, range));
        keys.push(key(tick(""), kind === "excess" ? "baseline" : `baseline ${format(baseline)}`));
      }
      const threshold = kind === "score" ? this.definitions[by]?.threshold ?? null : null;
      if (threshold !== null) {
        bar.append(tick("threshold", threshold, range));
        keys.push(key(tick("threshold"), `threshold ${threshold}`));
      }
      if (seen("outlined")) keys.push(key(marked("outline"), `labelled ${by}`));
    }
    for (const status of unique(cells.map(({node}) => node.dataset.status))) {
      if (status !== "ok") keys.push(key(marked("missing"), STATUS[status].join(": ")));
    }
    if (seen("borderline")) {
      keys.push(key(marked("borderline"), "borderline: the exactness of the weights would give or take a label"));
    }
    return [...parts, element("div", {className: "keys"}, ...keys)];
  }

  // --- one head ---

  headline(head, {by, kind}, note = "") {
    const entropy = head.entropy === null ? "–" : `${format(head.entropy)}\u00a0${UNITS.entropy}`;
    const facts = [`KV head ${head.kv_head}`, `entropy ${entropy}`];
    const {custom} = head.scores;
    if (custom?.mae_similarity != null) {
      facts.push(`1 − mean absolute error of the pattern ${format(custom.mae_similarity)}`);
    }
    if (by !== "label" && by !== "entropy") {
      const value = this.number(head, by, kind), what = kind === "excess" ? `${by} excess` : by;
      facts.unshift(value === null ? `${by}: ${STATUS[this.status(head, by)][0]}` : `${what} ${format(value)}`);
    }
    const chips = [
      ...head.labels.map(label => chip(label, head.borderline.includes(label) ? "borderline" : "")),
      ...head.borderline.filter(label => !head.labels.includes(label)).map(label => chip(label, "borderline: not carried")),
    ];
    return [
      element("h2", {textContent: titleOf(head)}),
      element("span", {className: "quiet", textContent: [...facts, ...note ? [note] : []].join(" · ")}),
      element("div", {className: "chips"}, ...chips.length ? chips : [element("span", {className: "quiet", textContent: NONE})]),
    ];
  }

  header() {
    const names = ["score of", "score", "", "baseline", "excess", "argmax rate", "rows", "status",
      ...this.pooled ? ["sd", "95 % interval", "n"] : [], ...this.agreeing ? ["agree"] : []];
    return element("tr", {}, ...names.map(textContent =>
      textContent ? element("th", {scope: "col", textContent, title: COLUMNS[textContent] ?? ""}) : element("td")));
  }

  rows(head, by) {
    return this.names.map(name => this.row(head, name, by));
  }

  row(head, name, by) {
    const score = head.scores[name], range = this.range(name, "score"), bar = element("span", {className: "bar"});
    const {threshold} = this.definitions[name];
    if (score.score !== null) {
      const filled = element("i");
      filled.style.width = `${100 * position(score.score, range)}%`;
      bar.append(filled, tick("", score.baseline, range));
      if (threshold !== null) bar.append(tick("threshold", threshold, range));
    }
    const carried = head.labels.includes(name);
    const [status, why] = STATUS[score.status] ?? ["ok", ""];
    const node = element("tr", {},
      element("th", {scope: "row", title: this.about(name)},
        carried ? swatch(name) : element("span", {className: "swatch none"}), name),
      decimal(score.score), element("td", {}, bar), decimal(score.baseline), decimal(score.excess),
      decimal(score.argmax_rate), whole(score.rows), element("td", {textContent: status, title: why}));
    if (this.pooled) {
      const [textContent, title] = score.ci95 ? [score.ci95.map(format).join(" to "), score.ci95.join(" to ")] : ["–", ""];
      node.append(decimal(score.sd), element("td", {textContent, title}), whole(score.n));
    }
    if (this.agreeing) node.append(whole(head.texts_agreeing[name]));
    node.classList.toggle("carried", carried);
    node.classList.toggle("chosen", name === by);
    return node;
  }
}

const colorOf = label => COLORS[label] ?? "gray";
const carries = (head, label) => label === NONE ? !head.labels.length : head.labels.includes(label);
const decimal = value =>
  element("td", value == null ? {textContent: "–"} : {textContent: format(value), title: String(value)});
const whole = value => element("td", {textContent: value ?? "–"});
const key = (mark, text) => element("span", {}, mark, ` ${text}`);
const marked = className => element("span", {className: `swatch ${className}`});

export function swatch(label) {
  const node = element("span", {className: "swatch"});
  node.style.backgroundColor = COLORS[label] ?? "";
  return node;
}

function labelButton(label, count, share, properties) {
  return element("button", {type: "button", value: label, ...properties}, swatch(label), element("span", {textContent: label}),
    element("span", {className: "count", textContent: count}), element("span", {className: "share", textContent: share}));
}

// What the legend can single out; first_token is a score without a label
export const SINGLED_OUT = [...Object.keys(COLORS).filter(name => name !== "first_token"), NONE];

// The same buttons before there is an answer
export const emptyLegend = () => SINGLED_OUT.map(label => labelButton(label, "", "", {disabled: true}));

export function chip(label, note) {
  const textContent = note ? `${label} (${note})` : label;
  return element("span", {className: "chip"}, swatch(label), element("span", {textContent}));
}

function stripes(colors) {
  const width = 100 / colors.length;
  const stops = colors.map((color, i) => `${color} ${i * width}% ${(i + 1) * width}%`);
  return stops.length ? `linear-gradient(90deg, ${stops.join()})` : "";
}

function shade(value, range) {
  const part = range[0] < 0 ? value / range[1] : position(value, range);
  const color = `rgb(var(${part < 0 ? "--below" : "--heat"}) / ${Math.min(1, Math.abs(part))})`;
  return `linear-gradient(${color}, ${color})`;
}

function position(value, [low, high]) {
  return Math.min(1, Math.max(0, (value - low) / (high - low)));
}

function tick(kind, value, range) {
  const node = element("span", {className: `tick ${kind}`});
  if (range) node.style.left = `${100 * position(value, range)}%`;
  return node;
}
