// What is shown while an answer is waited for, and when there is none

import {element} from "./common.js";
import {Problem} from "./api.js";

const PATIENCE = 150;  // milliseconds; what comes sooner is not announced

// One question at a time: the next one ends the one before. `status` tells how it goes (role="status" in the page);
// `panel`, which the answer will fill, is dimmed meanwhile. Where it `keeps` what was answered before, it stays dimmed
// until there is an answer: what it shows is of another question. `onCancel` is called when the user gives up
export class Loading {
  constructor(status, panel, {keeps = false, onCancel = () => {}} = {}) {
    Object.assign(this, {status, panel, keeps, onCancel, running: null});
    status.tabIndex = -1;
  }

  // `work(signal, waiting)` asks and shows, see `ask` in api.js; it gives false where it left what was shown before. True
  // when it was done, false when it failed or was overtaken
  async run(doing, work) {
    this.running?.abort();
    const mine = this.running = new AbortController();
    const announce = setTimeout(() => { if (mine === this.running) this.say(doing); }, PATIENCE);
    this.panel.ariaBusy = "true";
    let done = false;
    try {
      const shown = await work(mine.signal, (problem, seconds) => {
        clearTimeout(announce);
        const told = `${problem.message} Asking again in ${seconds} s.`;
        if (mine === this.running) this.say(told, {cancel: () => this.cancel()});
      });
      if (mine !== this.running) return false;
      this.say("");
      return done = shown !== false;
    } catch (error) {
      if (mine !== this.running) return false;
      if (error.name === "AbortError") this.say("Cancelled.", {retry: () => this.run(doing, work)});
      else this.fail(error, () => this.run(doing, work));
      if (!(error instanceof Problem) && error.name !== "AbortError") throw error;  // a fault of the page's: to the console
      return false;
    } finally {
      clearTimeout(announce);
      if (mine === this.running) {
        this.panel.ariaBusy = String(this.keeps && !done);
        this.running = null;
      }
    }
  }

  // As the user does
  cancel() {
    this.running?.abort();
    this.onCancel();
  }

  // Ends the question under way, if any, and takes away what was said
  stop() {
    this.running?.abort();
    this.running = null;
    this.panel.ariaBusy = "false";
    this.say("");
  }

  say(text, {retry, cancel} = {}) {
    const focused = this.status.contains(document.activeElement);
    const button = (name, act) => act ? [" ", element("button", {type: "button", textContent: name, onclick: act})] : [];
    this.status.className = "status";
    this.status.replaceChildren(...text ? [text] : [], ...button("Try again", retry), ...button("Cancel", cancel));
    if (focused) (this.status.querySelector("button") ?? this.status).focus();  // the keyboard's place is not lost
  }

  fail(error, retry) {
    const theirs = error instanceof Problem && error.status >= 400 && error.status < 500 && ![401, 429].includes(error.status);
    const about = error instanceof Problem ? error.message : "Something went wrong in this page.";
    this.say(about, theirs ? {} : {retry});
    this.status.className = "status problem";
  }
}
