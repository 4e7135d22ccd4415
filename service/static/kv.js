// The KV cache tab: how many bytes models keep for so many tokens, and what fits. Needs no loaded model

import {beginning, element, visible} from "./common.js";
import {Problem, askJson} from "./api.js";
import {Export} from "./export.js";
import {Loading} from "./loading.js";
import * as state from "./state.js";
import {binary, decimal, exact, parseBytes} from "./bytes.js";
import {Chart, stopsFor, swatch} from "./kv_chart.js";
import {MOST, Picker} from "./kv_picker.js";
import {comparison, details, lengthOf, warnings} from "./kv_numbers.js";

const PATH = "v1/kv-cache";
// One of each arrangement of keys and values, and one with sliding windows
const FIRST = ["meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.1-8B", "google/gemma-3-4b-it",
  "deepseek-ai/DeepSeek-V3"];
const NONE = "none";  // no model is picked: the address cannot hold an empty list
const OWN = "your config";
const ASSUMED_LONGEST = 131072;
const MOST_TOKENS = 1e9;  // that the service answers for
const MOST_CURVES = 200;

const DTYPES = [
  "auto", "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0",
  "iq4_nl", "mxfp4", "nvfp4", "int8_per_token_head", "fp8_per_token_head", "fp8_ds_mla",
];
const ENGINES = {
  "ideal": "ideal", "vllm": "vLLM reserves", "llama.cpp": "llama.cpp reserves", "hf": "transformers keeps",
  "no-swa": "without windows",
};

// In the address: {its name there, its member of the request, what is read from the text or null where it is none}
const integer = text => /^\d{1,15}$/.test(text.replaceAll(/[ ,_]/g, "")) ? Number(text.replaceAll(/[ ,_]/g, "")) : null;
const oneOf = names => text => names.includes(text) ? text : null;
const READING = "Point, or use the arrow keys on the chart, to read off; click or Enter takes that number of tokens. "
  + "A line is dotted beyond its model's maximum.";
const WHOLE = "A whole number, please.";
const SETTINGS = {
  tokens: {label: "Tokens", member: "tokens", first: "4096", read: integer, wrong: WHOLE},
  sequences: {label: "Sequences", member: "batch", first: "1", read: integer, wrong: WHOLE},
  dtype: {label: "Type of keys and values", member: "dtype", first: "auto", read: oneOf(DTYPES),
    wrong: `One of ${DTYPES.join(", ")}.`,
    options: DTYPES.map(name => [name, name === "auto" ? "auto: as the model" : name])},
  engine: {label: "Engine", member: "engine", first: "ideal", read: oneOf(Object.keys(ENGINES)),
    wrong: `One of ${Object.keys(ENGINES).join(", ")}.`,
    options: Object.entries(ENGINES)},
  budget: {label: "Memory budget", member: "memory_budget_bytes", first: "", read: text => parseBytes(text) || null,
    placeholder: "24 GiB, 24 GB", wrong: "More than 0, as 24 GiB or 24 GB."},
  encoder_tokens: {label: "Encoder tokens", member: "encoder_tokens", first: "", read: integer, wrong: WHOLE,
    placeholder: "as the model"},
};

export function mount(panel) {
  new Tab(panel).start();
}

class Tab {
  constructor(panel) {
    this.presets = new Map();
    this.config = null;
    this.curves = new Map();  // by what was asked
    this.kept = null;  // the line that the legend keeps in front
    this.status = element("p", {className: "status", role: "status"});
    this.fields = Object.fromEntries(Object.entries(SETTINGS).map(([name, setting]) => [name, field(name, setting)]));
    this.legend = element("ul", {className: "legend", ariaLabel: "Lines"});
    this.read = element("p", {className: "read"});
    this.plot = element("div", {className: "plot"});
    this.scale = scaleSwitch();
    this.numbers = element("div", {className: "numbers"});
    this.export = new Export();
    this.models = element("div", {className: "in-detail"});
    this.answers = element("div", {className: "answers", hidden: true},
      this.drawing(), this.numbers, this.export.node, this.models);
    this.empty = element("p", {hidden: true, textContent: "Pick a model on the list, or paste a config.json."});
    const picker = element("div", {className: "picker"});
    panel.replaceChildren(element("div", {className: "kv"}, picker, element("div", {className: "main"},
      element("div", {className: "controls settings"}, ...Object.values(this.fields).map(({box}) => box)),
      this.status, this.empty, this.answers)));
    this.picker = new Picker(picker, {
      onPick: ids => state.set({models: ids.length ? ids.join(",") : NONE}),
      onConfig: config => { this.config = config; this.refresh(); },
    });
    this.chart = new Chart(this.plot, {onPoint: tokens => this.readOff(tokens), onChoose: tokens => state.set({tokens})});
    this.loading = new Loading(this.status, this.answers, {keeps: true});
    this.listing = new Loading(this.picker.status, this.picker.list);
  }

  start() {
    this.showEncoder([], this.settings());
    this.listing.run("Asking which models are known …", async (signal, waiting) => {
      const {models} = await askJson(`${PATH}/models`, {signal, waiting});
      this.presets = new Map(models.flatMap(preset =>
        [preset.id, ...preset.aliases].map(name => [name.toLowerCase(), preset])));
      this.picker.fill(models);
      state.subscribe(names => {
        if (["models", ...Object.keys(SETTINGS)].some(name => names.has(name))) this.refresh();
        else if (names.has("scale")) this.draw();
      });
      this.refresh();
    });
  }

  // --- what is asked ---

  picked() {
    const given = state.get("models");
    if (given === null) return FIRST;
    const ids = given === NONE ? [] : given.split(",").filter(Boolean).map(name => this.preset(name)?.id ?? name);
    return [...new Set(ids)].slice(0, MOST);
  }

  preset(name) {
    return this.presets.get(name.toLowerCase());
  }

  // The settings as the request has them; null when one cannot be read, which is told at its field
  settings() {
    const values = {};
    let wrong = false;
    for (const [name, setting] of Object.entries(SETTINGS)) {
      const text = state.get(name) || setting.first, {input} = this.fields[name];
      input.value = text;
      const value = text === "" ? undefined : setting.read(text);
      this.tell(name, value === null ? setting.wrong : "");
      wrong ||= value === null;
      values[name] = value;
    }
    this.fields.budget.hint.textContent = values.budget ? `= ${exact(values.budget)}, ${decimal(values.budget)}` : "";
    return wrong ? null : values;
  }

  tell(name, problem) {
    this.fields[name].problem.textContent = problem;
    this.fields[name].input.ariaInvalid = String(problem !== "");
  }

  entries() {
    const named = this.picked().map(id => ({name: id, preset: this.preset(id), source: {model: id}}));
    const own = this.config === null ? [] : [{name: nameOf(this.config), source: {config: this.config}}];
    return [...named.slice(0, MOST - own.length), ...own].map((entry, index) => ({...entry, index}));
  }

  members(values) {
    const told = ([name, value]) => value !== undefined && (name === "tokens" || String(value) !== SETTINGS[name].first);
    const given = Object.entries(values).filter(told);
    return Object.fromEntries(given.map(([name, value]) => [SETTINGS[name].member, value]));
  }

  refresh() {
    const values = this.settings(), entries = this.entries();
    this.picker.show(this.picked(), this.config !== null);
    this.showEncoder(entries, values);
    this.empty.hidden = entries.length > 0;
    if (!values || !entries.length) {
      this.loading.stop();  // what is still asked for is of no use any more
      this.answers.hidden = !entries.length || !this.answered;
      this.answers.ariaBusy = String(!values);  // the last answer is of other settings
      return;
    }
    const known = entries.map(({preset, source}) => preset ? preset.max_tokens : longestOf(source.config))
      .filter(one => Number.isSafeInteger(one) && 1 <= one && one <= MOST_TOKENS);
    const stops = stopsFor(Math.max(values.tokens, ...known.length ? known : [ASSUMED_LONGEST]), known, values.tokens);
    const members = this.members(values);
    this.loading.run("Asking …", async (signal, waiting) => {
      const told = await Promise.all(entries.map(async entry => {
        const asked = answered(entry, {...entry.source, ...members, detail: "layers"}, {signal, waiting});
        const drawn = this.curve(entry, {...members, tokens: stops}, {signal, waiting});
        const [one, curve] = await Promise.all([asked, drawn]);
        return {...one, points: one.answer ? pointsOf(one.answer, curve) : null};
      }));
      this.place(told);
      if (this.answered && told.every(({problem}) => problem && this.ofField(problem))) return false;
      const readable = [...new Set([...stops, values.tokens])].sort((one, other) => one - other);
      this.answered = {entries: told, values, stops: readable};
      this.answers.hidden = false;
      this.draw();
      this.write();
    });
  }

  // The chart's points: asked for by themselves, as a warning of very long sequences is no answer to the user's question
  async curve({source}, {memory_budget_bytes: _, ...members}, options) {
    const body = {...source, ...members}, key = JSON.stringify(body);
    if (!this.curves.has(key)) {
      const {answer, problem} = await answered({}, body, options);
      if (problem) return null;
      if (this.curves.size > MOST_CURVES) this.curves.clear();
      this.curves.set(key, answer);
    }
    return this.curves.get(key);
  }

  // Encoders are few: what is said of them is asked for where it matters
  showEncoder(entries, values) {
    const needed = entries.some(({preset}) => preset && preset.fixed_bytes_per_sequence === null);
    this.fields.encoder_tokens.box.hidden = !(needed || this.config !== null || values?.encoder_tokens);
  }

  // Problems stand at the field that they are of
  place(entries) {
    const own = entries.find(({source}) => source.config);
    this.picker.tell(own?.problem && !this.ofField(own.problem) ? ofConfig(own.problem) : null);
    for (const {problem} of entries) {
      const name = problem && this.ofField(problem);
      if (name) this.tell(name, visible(problem.errors[0].detail));
    }
  }

  ofField(problem) {
    const member = problem.errors[0]?.pointer.split("/")[1];
    return Object.keys(SETTINGS).find(name => SETTINGS[name].member === member);
  }

  // --- what is shown ---

  drawing() {
    return element("section", {ariaLabel: "Chart"},
      element("div", {className: "controls"}, element("h2", {textContent: "Bytes against tokens"}), this.scale),
      element("div", {className: "chart"}, this.plot, this.read, this.legend),
      element("p", {className: "hint", textContent: READING}));
  }

  draw() {
    const log = state.get("scale") !== "linear";
    for (const input of this.scale.querySelectorAll("input")) input.checked = (input.value === "log") === log;
    if (!this.answered) return;
    const {entries, values, stops} = this.answered, drawn = entries.filter(({answer}) => answer);
    this.plot.hidden = !drawn.length;
    const lines = drawn.map(({name, index, answer, points, preset}) => ({
      name: short(name), index, points, most: preset?.max_tokens ?? null, fits: answer.max_tokens?.per_sequence ?? null,
    }));
    this.lines = new Map(lines.map(line => [line.index, line]));
    const focused = [...this.legend.querySelectorAll("button")].indexOf(document.activeElement);
    this.legend.replaceChildren(...entries.map(entry => this.legendItem(entry)));
    this.legend.querySelectorAll("button")[focused]?.focus();
    if (!drawn.some(({index}) => index === this.kept)) this.kept = null;
    this.chart.strong = this.kept;
    if (lines.length) this.chart.show({lines, stops, budget: values.budget, log, asked: values.tokens});
    this.readOff(null);
    this.offer();
  }

  legendItem({name, index, source}) {
    const size = element("span", {className: "size", textContent: "–"});
    size.dataset.index = index;
    const strengthen = one => this.chart.strengthen(one ?? this.kept);
    const button = element("button", {
      type: "button", className: "line-name", ariaPressed: String(this.kept === index), title: visible(name),
      onclick: () => {
        this.kept = this.kept === index ? null : index;
        for (const other of this.legend.querySelectorAll(".line-name")) other.ariaPressed = "false";
        button.ariaPressed = String(this.kept === index);
        strengthen(index);
      },
      onfocus: () => strengthen(index), onblur: () => strengthen(null),
      onpointerenter: () => strengthen(index), onpointerleave: () => strengthen(null),
    }, swatch(index), element("bdi", {textContent: visible(short(name))}), size);
    const remove = element("button", {
      type: "button", className: "remove", ariaLabel: `Remove ${visible(name)}`, textContent: "×",
      onclick: () => this.remove(source),
    });
    return element("li", {}, button, remove);
  }

  remove(source) {
    if (source.config) {
      this.picker.takeAway();
      return;
    }
    const left = this.picked().filter(id => id !== source.model);
    state.set({models: left.length ? left.join(",") : NONE});
    this.picker.search.focus();
  }

  // Beside each line's name its size at what is pointed at, else at what is asked for
  readOff(tokens) {
    const {values} = this.answered, here = tokens ?? values.tokens;
    this.read.textContent = `At ${lengthOf({...values, tokens: here})}:`;
    for (const node of this.legend.querySelectorAll(".size")) {
      const size = this.lines.get(Number(node.dataset.index))?.points.get(here);
      if (size === undefined) continue;
      node.replaceChildren(element("b", {textContent: binary(size)}), ` ${decimal(size)}`);
      node.title = exact(size);
    }
  }

  write() {
    const {entries, values} = this.answered, fine = entries.filter(({answer}) => answer);
    const open = new Set([...this.models.querySelectorAll("details[open]")].map(node => node.dataset.name));
    const told = warnings(entries);
    const models = fine.map(entry => {
      const node = details(entry, values, entry.preset);
      node.dataset.name = entry.name;
      node.open = open.has(entry.name) || entries.length === 1;
      return node;
    });
    this.numbers.replaceChildren(comparison(entries, values),
      ...told.length ? [element("ul", {className: "warnings told", ariaLabel: "Warnings"}, ...told)] : []);
    this.models.replaceChildren(...models);
  }

  // --- to take along ---

  // One request for all: the first is asked about, the others compared with it
  offer() {
    const {entries, values} = this.answered, scale = state.get("scale") === "linear" ? "linear" : "log";
    const fine = entries.filter(({answer}) => answer), own = ({source}) => source.config !== undefined;
    const [main, ...others] = [...fine.filter(own), ...fine.filter(entry => !own(entry))];
    this.export.node.hidden = !main;
    if (!main) return;
    const compared = others.length ? {compare_models: others.map(({source}) => source.model)} : {};
    const body = {...main.source, ...this.members(values), ...compared};
    const sizes = {what: "Sizes", path: PATH, body, file: "kv-cache", formats: ["CSV", "JSON"]};
    const chart = {...sizes, what: "Chart", path: `${PATH}?width=960&scale=${scale}`, formats: ["SVG", "PNG"]};
    this.export.offer([sizes, chart], [sizes]);
  }
}

// --- the parts of the tab ---

function field(name, {label, first, options, placeholder = ""}) {
  const id = `kv-${name}`, commit = () => {
    if (input.value.trim() === "") input.value = first;
    state.set({[name]: input.value.trim() === first ? null : input.value.trim()});
  };
  const input = options
    ? element("select", {id}, ...options.map(([value, textContent]) => element("option", {value, textContent})))
    : element("input", {id, placeholder, autocomplete: "off", inputMode: name === "budget" ? "text" : "numeric"});
  input.addEventListener("change", commit);
  const problem = element("span", {className: "field-problem", id: `${id}-problem`, role: "alert"});
  const hint = element("span", {className: "hint", id: `${id}-hint`});
  input.setAttribute("aria-describedby", `${id}-problem ${id}-hint`);
  const box = element("div", {className: "field"}, element("label", {htmlFor: id, textContent: label}), input, hint, problem);
  return {input, problem, hint, box};
}

function scaleSwitch() {
  const choice = (value, textContent) => element("label", {}, element("input", {
    type: "radio", name: "kv-scale", value, onchange: () => state.set({scale: value === "log" ? null : value}),
  }), textContent);
  return element("div", {role: "radiogroup", ariaLabel: "Axes", className: "controls"},
    choice("log", "logarithmic"), choice("linear", "linear"));
}

// With its answer, or with what is wrong with it; other problems are of all
async function answered(entry, body, options) {
  try {
    return {...entry, answer: await askJson(PATH, {body, ...options})};
  } catch (problem) {
    if (problem instanceof Problem && [400, 413, 422].includes(problem.status)) return {...entry, problem};
    throw problem;
  }
}

// Tokens to bytes, in order. A chart that could not be had, as sizes become too large, has only what was asked for
function pointsOf(answer, curve) {
  const sizes = [...curve?.sizes ?? [], answer.sizes[0]].sort((one, other) => one.tokens - other.tokens);
  return new Map(sizes.map(size => [size.tokens, size.batch_bytes]));
}

const ofConfig = problem => problem.errors.map(({pointer, detail}) => `${pointer}: ${detail}`).join(" ") || problem.message;
const short = name => name.slice(name.lastIndexOf("/") + 1);

const nameOf = ({model_type: type}) => typeof type === "string" ? `${OWN}: ${beginning(type, 40)}` : OWN;

// Only for how far the chart goes: what it means is the service's to read
const longestOf = config => config?.max_position_embeddings ?? config?.text_config?.max_position_embeddings;
