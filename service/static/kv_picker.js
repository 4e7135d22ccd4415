// Which models: a list to search and to tick, and a config.json to paste

import {beginning, element, visible} from "./common.js";
import {binary, grouped} from "./bytes.js";

export const MOST = 8;  // lines whose colours can be told apart, and models that one export holds
const DEEPEST = 100;  // objects in objects; no config is, and reading those of many thousands ends the stack
const PRIVATE = "Sent to this service only, and not in the link: who opens it must paste the config again.";

// `onPick(ids)` and `onConfig(config or null)` tell what the user changed
export class Picker {
  constructor(root, {onPick, onConfig}) {
    Object.assign(this, {onPick, onConfig, picked: [], own: false, options: []});
    this.search = element("input", {
      type: "search", id: "kv-search", placeholder: "llama, gemma 27b, mla …", autocomplete: "off", spellcheck: false,
    });
    this.list = element("div", {className: "models", role: "listbox", ariaMultiSelectable: "true", ariaLabel: "Models"});
    this.status = element("p", {className: "status", role: "status"});
    this.count = element("p", {className: "hint", role: "status"});
    this.text = element("textarea", {id: "kv-config", rows: 7, spellcheck: false, placeholder: "{\"model_type\": …}"});
    this.problem = element("p", {className: "field-problem", id: "kv-config-problem", role: "alert"});
    this.text.setAttribute("aria-describedby", "kv-config-problem kv-config-hint");
    this.paste = element("details", {},
      element("summary", {textContent: "Paste a config.json"}),
      element("label", {htmlFor: "kv-config", textContent: "A Hugging Face config.json"}), this.text, this.problem,
      element("div", {className: "controls"},
        element("button", {type: "button", textContent: "Use it", onclick: () => this.use()}),
        element("button", {type: "button", textContent: "Take it away", onclick: () => this.takeAway()})),
      element("p", {className: "hint", id: "kv-config-hint", textContent: PRIVATE}));
    const label = element("label", {htmlFor: "kv-search", textContent: "Find a model"});
    root.append(label, this.search, this.status, this.list, this.count, this.paste);
    this.search.addEventListener("input", () => this.filter());
    this.search.addEventListener("keydown", event => {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      this.visible()[0]?.focus();
    });
    this.list.addEventListener("click", event => this.toggle(event.target.closest("[role=option]")));
    this.list.addEventListener("keydown", event => this.key(event));
    this.list.addEventListener("focusin", event => this.rove(event.target));
  }

  fill(presets) {
    this.options = presets.map(preset => {
      const {id, attention, max_tokens: most, bytes_per_token: rate} = preset;
      const kind = attention === "none" ? "state" : attention.toUpperCase();
      const facts = [kind, ...most === null ? [] : [`${grouped(most)} tokens`], `${binary(rate)} a token`];
      const option = element("div", {role: "option", tabIndex: -1},
        element("bdi", {textContent: visible(id)}), element("span", {className: "hint", textContent: facts.join(" · ")}));
      option.dataset.id = id;
      option.dataset.words = [id, ...preset.aliases, attention].join(" ").toLowerCase();
      return option;
    });
    this.list.replaceChildren(...this.options);
    this.filter();
    this.show(this.picked, this.own);
  }

  // `own`: a pasted config is one of the lines
  show(picked, own) {
    Object.assign(this, {picked, own});
    for (const option of this.options) {
      option.ariaSelected = String(picked.includes(option.dataset.id));
      option.ariaDisabled = String(this.full && option.ariaSelected === "false");
    }
    this.tellCount();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const option of this.options) option.hidden = !words.every(word => option.dataset.words.includes(word));
    const shown = this.visible();
    this.rove(shown.find(option => option.ariaSelected === "true") ?? shown[0]);
    this.tellCount();
  }

  tellCount() {
    const {picked, own} = this, left = picked.slice(MOST - Number(own)), and = own ? ", and your config" : "";
    const full = this.full ? ` No more than ${MOST} at once${left.length ? `: left out is ${visible(left.join(", "))}` : ""}.` : "";
    this.count.textContent = `${this.visible().length} of ${this.options.length} models; ${picked.length} picked${and}.${full}`;
  }

  get full() {
    return this.picked.length + Number(this.own) >= MOST;
  }

  visible() {
    return this.options.filter(option => !option.hidden);
  }

  rove(to) {
    for (const option of this.options) option.tabIndex = option === to ? 0 : -1;
  }

  toggle(option) {
    if (!option || option.ariaDisabled === "true") return;
    const {id} = option.dataset;
    this.onPick(this.picked.includes(id) ? this.picked.filter(one => one !== id) : [...this.picked, id]);
  }

  key(event) {
    const shown = this.visible(), here = shown.indexOf(event.target), last = shown.length - 1;
    const to = {ArrowDown: here + 1, ArrowUp: here - 1, PageDown: here + 8, PageUp: here - 8, Home: 0, End: last}[event.key];
    if (to !== undefined) shown[Math.min(Math.max(to, 0), last)]?.focus();
    else if (event.key === " " || event.key === "Enter") this.toggle(event.target);
    else if (event.key === "Escape") this.search.focus();
    else return;
    event.preventDefault();
  }

  // --- the pasted config ---

  use() {
    const [config, problem] = read(this.text.value);
    this.tell(problem);
    if (!problem) this.onConfig(config);
  }

  takeAway() {
    this.text.value = "";
    this.tell(null);
    this.onConfig(null);
  }

  tell(problem) {
    this.problem.textContent = problem ?? "";
    this.text.ariaInvalid = String(Boolean(problem));
    if (problem) this.paste.open = true;
  }
}

function read(text) {
  if (!text.trim()) return [null, "Nothing is pasted yet."];
  let endless = null;  // 1e400 is one, and would be null on its way to the service
  try {
    const config = JSON.parse(text, (name, value) => {
      if (value === Infinity || value === -Infinity) endless = name;
      return value;
    });
    if (endless !== null) return [null, `The number at ${visible(beginning(endless, 40))} is too large.`];
    const isObject = config !== null && typeof config === "object" && !Array.isArray(config);
    if (!isObject) return [null, "A config.json is a JSON object: {…}."];
    return depth(config) > DEEPEST ? [null, "This is nested too deeply."] : [config, null];
  } catch (error) {
    return [null, error instanceof SyntaxError ? `This is not JSON: ${visible(error.message)}.` : "This is nested too deeply."];
  }
}

const depth = value => value !== null && typeof value === "object"
  ? 1 + Object.values(value).reduce((deepest, one) => Math.max(deepest, depth(one)), 0)
  : 0;
