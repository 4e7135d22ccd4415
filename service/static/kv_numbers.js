// What the service says of each model, as tables and in words

import {element, visible} from "./common.js";
import {binary, decimal, exact, grouped} from "./bytes.js";
import {swatch} from "./kv_chart.js";

const KINDS = {
  full_attention: "full attention", sliding_attention: "sliding window", chunked_attention: "chunked",
  cross_attention: "cross-attention", mamba: "Mamba state", mamba2: "Mamba-2 state",
  gated_delta_net: "gated DeltaNet state",
  kimi_delta_attention: "Kimi delta attention state", lightning_attention: "lightning attention state",
  rg_lru: "RG-LRU state", short_conv: "short convolution", none: "nothing kept",
};
const STATUS = {
  verified: "read from a complete published config",
  secondhand: "not read from the publisher's own config; check it before you rely on it",
};
const ARRANGEMENTS = {
  mha: "MHA: a key and a value for every head", gqa: "GQA: shared by groups of heads",
  mqa: "MQA: one for all heads", mla: "MLA: one latent row for all heads",
};

const cell = (content, properties = {}) => element("td", properties, ...[content].flat());
const number = content => cell(content, {className: "number"});
const bold = textContent => element("b", {textContent});
const below = textContent => element("span", {className: "exact", textContent});
const bytes = size => [bold(binary(size)), below(decimal(size)), below(exact(size))];

// `of` tells tables of one caption apart
function table(caption, names, rows, of = "") {
  const head = element("tr", {}, ...names.map(textContent => element("th", {scope: "col", textContent})));
  return element("div", {className: "wide", tabIndex: 0, role: "region", ariaLabel: of ? `${caption}: ${of}` : caption},
    element("table", {}, element("caption", {textContent: caption}), element("thead", {}, head), element("tbody", {}, ...rows)));
}

const count = tokens => tokens === null ? "any number" : grouped(tokens);

export const lengthOf = ({tokens, sequences}) =>
  `${grouped(tokens)} tokens${sequences > 1 ? ` × ${grouped(sequences)} sequences` : ""}`;

// A row a model: `entries` as kv.js makes them, {name, index, answer or problem}. Columns that say nothing are left out
export function comparison(entries, values) {
  const {budget} = values, beyond = answer => bytes(answer.bytes_per_token_beyond_window);
  const some = has => entries.some(({answer}) => answer && has(answer));
  const columns = [
    ["Keys and values", answer => cell([arrangement(answer), below(types(answer))])],
    ["Every token", answer => number(bytes(answer.bytes_per_token))],
    ...some(slides) ? [["Once windows are full", answer => number(slides(answer) ? beyond(answer) : "the same")]] : [],
    ...some(keepsState) ? [["However long", state]] : [],
    [lengthOf(values), answer => number(bytes(answer.sizes[0].batch_bytes))],
    ...budget ? [["Longest that fits", longest], ["Sequences that fit", fitting]] : [],
  ];
  const rows = entries.map(({name, index, answer, problem}) => element("tr", {},
    element("th", {scope: "row"}, swatch(index), element("bdi", {textContent: visible(name)})),
    ...answer
      ? columns.map(([, write]) => write(answer))
      : [cell(visible(problem.message), {colSpan: columns.length, className: "field-problem"})]));
  const caption = budget ? `Sizes, and what fits into ${binary(budget)}` : "Sizes";
  return table(caption, ["Model", ...columns.map(([name]) => name)], rows);
}

const slides = answer => answer.bytes_per_token_beyond_window !== answer.bytes_per_token;
const keepsState = answer => answer.fixed_bytes_per_sequence > 0;
const arrangement = ({attention}) => attention === "none" ? "state only" : attention.toUpperCase();
const types = ({k_dtype: k, v_dtype: v}) => k === v ? k : `${k}, ${v}`;

const state = answer => number(keepsState(answer) ? bytes(answer.fixed_bytes_per_sequence) : "–");
const fitting = ({capacity}) => number(bold(count(capacity.max_sequences[0])));

function longest({max_tokens: {per_sequence: most, limited_by_model: limited}}) {
  const past = limited !== null && limited !== most;
  return number([bold(count(most)), ...past ? [below(`maximum ${grouped(limited)}`)] : []]);
}

// All there is of one model, under its name
export function details(entry, {tokens}, preset) {
  const {answer} = entry;
  const kinds = new Map();
  for (const layer of answer.layers) {
    const key = `${layer.kind} ${layer.window}`;
    const kind = kinds.get(key) ?? kinds.set(key, {...layer, layers: 0, rate: 0, size: 0}).get(key);
    kind.layers++;
    kind.rate += layer.bytes_per_token;
    kind.size += layer.sizes_bytes[0];
  }
  const whole = answer.sizes[0].per_sequence_bytes;
  const rows = [...kinds.values()].map(kind => element("tr", {},
    element("th", {scope: "row", textContent: visible(KINDS[kind.kind] ?? kind.kind)},
      ...kind.window ? [` of ${grouped(kind.window)}`] : []),
    number(grouped(kind.layers)), number(bytes(kind.rate)), number(bytes(kind.size)),
    number(whole ? `${(100 * kind.size / whole).toFixed(1)} %` : "–")));
  return element("details", {className: "model"},
    element("summary", {}, swatch(entry.index), element("bdi", {textContent: visible(entry.name)}), ` in detail`),
    table(`By kind of layer, one sequence of ${grouped(tokens)} tokens`,
      ["Layers", "How many", "Every token", "Together", "Share"], rows, visible(entry.name)),
    arrangements(answer, visible(entry.name)),
    element("p", {textContent: visible(answer.formula)}),
    ...list("Assumed", answer.assumptions),
    ...list("vLLM would say", answer.capacity?.vllm?.log ?? []),
    ...preset ? [source(preset)] : []);
}

function arrangements({attention, compare}, of) {
  const rates = Object.entries(compare), most = Math.max(...rates.map(([, rate]) => rate.bytes_per_token));
  const rows = rates.map(([name, {bytes_per_token: rate}]) => {
    const bar = element("div", {className: "bar"});
    bar.style.width = `${most ? 100 * rate / most : 0}%`;
    const own = name === attention;
    return element("tr", {className: own ? "own" : ""},
      element("th", {scope: "row", textContent: `${ARRANGEMENTS[name] ?? name}${own ? " (as this model)" : ""}`}),
      number(bytes(rate)), cell(bar, {className: "bars"}));
  });
  return table("The same layers, arranged otherwise", ["Keys and values", "Every token", "Beside the others"], rows, of);
}

const list = (title, lines) => lines.length
  ? [element("h3", {textContent: title}),
    element("ul", {className: "warnings"}, ...lines.map(line => element("li", {textContent: visible(line)})))]
  : [];

// Every warning in full, and which model it is of
export const warnings = entries => entries.flatMap(({name, answer}) => (answer?.warnings ?? []).map(warning =>
  element("li", {}, element("bdi", {textContent: visible(name)}), `: ${visible(warning)}`)));

function source({status, source: from, checked, released, max_tokens: most}) {
  const facts = [`${status}: ${STATUS[status] ?? "see the source"}`, `source: ${from}`, `checked ${checked}`,
    `released ${released}`,
    most === null ? "its maximum length is not known" : `at most ${grouped(most)} tokens`];
  return element("p", {className: "hint", textContent: visible(`${facts.join(". ")}.`)});
}
