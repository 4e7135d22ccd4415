// The page: its tabs, what the service says of itself, and the key it may want

import {at, element, provenance, replacement, visible} from "./common.js";
import {Problem, ask, askJson, sendable, whenAKeyIsNeeded} from "./api.js";
import {Loading} from "./loading.js";
import * as state from "./state.js";

// Each module has `mount(panel, model)`, called when its tab is first shown; `model` is a promise of GET /v1/model
const TABS = {attention: "./attention.js", pronoun: "./pronoun.js", kv: "./kv.js"};
const mounted = new Set();

const tabs = [...at("tabs").children];
const chosen = () => Object.hasOwn(TABS, state.get("tab")) ? state.get("tab") : "attention";

async function showTab() {
  const name = chosen();
  for (const tab of tabs) {
    tab.ariaSelected = String(tab.value === name);
    tab.tabIndex = tab.value === name ? 0 : -1;
    at(tab.value).hidden = tab.value !== name;
  }
  document.title = `${tabs.find(tab => tab.value === name).textContent}: what a language model looks at`;
  if (mounted.has(name)) return;
  mounted.add(name);
  const status = element("p", {className: "status", role: "status"});
  at(name).replaceChildren(status);
  await new Loading(status, element("div")).run("Loading …", async () => {
    const {mount} = await import(TABS[name]).catch(error => {
      console.error(error);
      throw new Problem(0, null);
    });
    status.remove();
    mount(at(name), model);
  });
}

const go = tab => state.set({tab: tab.value === "attention" ? null : tab.value});
at("tabs").addEventListener("click", event => { if (event.target.value) go(event.target); });
at("tabs").addEventListener("keydown", event => {
  const here = tabs.indexOf(event.target), last = tabs.length - 1;
  const to = {ArrowRight: here === last ? 0 : here + 1, ArrowLeft: here || tabs.length, Home: 0, End: last}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const tab = tabs[event.key === "ArrowLeft" ? to - 1 : to];
  go(tab);
  tab.focus();
});
state.subscribe(names => { if (names.has("tab")) showTab(); });

const UNSENDABLE = "A key has letters without accents, digits and signs only, and no spaces.";
at("key-value").addEventListener("input", ({target}) =>
  target.setCustomValidity(target.value && !sendable(target.value) ? UNSENDABLE : ""));

whenAKeyIsNeeded(why => new Promise(resolve => {
  at("key-why").textContent = why;
  at("key").addEventListener("close", () => resolve(at("key").returnValue === "use" ? at("key-value").value : null), {once: true});
  if (at("key").open) return;
  at("key-value").value = "";
  at("key-value").setCustomValidity("");
  at("key").returnValue = "";
  at("key").showModal();
}));

// --- the service and its model ---

const service = new Loading(at("service"), at("model"));
const model = new Promise(resolve => {
  service.run("Asking the service …", async (signal, waiting) => {
    await ask("health/ready", {signal, waiting});
    const answer = await askJson("v1/model", {signal, waiting});
    const {id} = answer.model;
    at("weights").textContent = visible(id.slice(1 + Math.max(id.lastIndexOf("/"), id.lastIndexOf(":"))));
    at("model").replaceChildren(element("bdi", {textContent: visible(provenance(answer.model)), title: visible(id)}));
    if (answer.model.fallback) at("model").append(element("p", {className: "warning", textContent: visible(replacement(answer.model))}));
    resolve(answer);
  });
});
showTab();
