// A text whose words are marked as the pronoun and its candidates: by mouse, by touch and by the keyboard alone

import {element, visible} from "./common.js";
import {badge, choiceClass, letterOf} from "./candidates.js";
import {overlap, piecesOf, slice} from "./spans.js";

const ROLES = {pronoun: "the pronoun", candidate: "a candidate"};
const KEYS = {p: "pronoun", c: "candidate", Delete: null, Backspace: null};

// `onMark` gets {pronoun, candidates, gold} as the user has changed them; candidates in the text's order
export class Marker {
  constructor(root, {onMark}) {
    Object.assign(this, {onMark, role: null, text: null, words: [], from: 0, to: 0, dragging: null, marked: false});
    this.roles = element("fieldset", {className: "controls roles"}, element("legend", {textContent: "Mark words as"}),
      ...Object.entries(ROLES).map(([value, name]) => element("label", {},
        element("input", {type: "radio", name: "marker-role", value, onchange: () => { this.role = value; }}), name)));
    this.line = element("div", {className: "words", role: "group", ariaLabel: "The text’s words", dir: "auto"});
    this.list = element("ul", {className: "marks", ariaLabel: "Marks"});
    this.said = element("p", {className: "aside", role: "status"});
    const help = element("p", {className: "hint", id: "marker-help", textContent: "Click a word, or drag over several. " +
      "Keys: arrows move, with Shift over several words; Enter marks, P marks the pronoun, C a candidate, Delete takes a mark away."});
    this.line.setAttribute("aria-describedby", help.id);
    root.append(this.roles, this.line, help, this.list, this.said);
    this.#listen();
  }

  // `faults`: {place: message}, place as in the service's pointers, "pronoun" or "candidates/0"
  show({text, pronoun, candidates, gold}, faults = {}) {
    Object.assign(this, {marks: {pronoun, candidates, gold}, faults});
    if (text !== this.text) this.#write(text);
    this.#setRole(!pronoun ? "pronoun" : !candidates.length ? "candidate" : this.role ?? "candidate");
    for (const piece of this.pieces) this.#paint(piece);
    this.#showList();
  }

  #setRole(role) {
    this.role = role;
    for (const input of this.roles.querySelectorAll("input")) input.checked = input.value === role;
  }

  #write(text) {
    this.text = text;
    this.pieces = piecesOf(text);
    for (const piece of this.pieces) {
      piece.node = piece.blank ? element("span", {textContent: piece.text}) :
        element("button", {type: "button", tabIndex: -1, textContent: visible(piece.text)});
    }
    this.words = this.pieces.filter(piece => !piece.blank);
    this.placeOf = new Map(this.words.map((word, place) => [word.node, place]));
    this.from = this.to = 0;
    if (this.words.length) this.words[0].node.tabIndex = 0;
    this.line.replaceChildren(...this.pieces.map(piece => piece.node));
  }

  // [place, name] of the mark that a piece of the text is in
  #markOf(span) {
    const {pronoun, candidates} = this.marks;
    if (pronoun && overlap(pronoun, span)) return ["pronoun", "pronoun"];
    const index = candidates.findIndex(candidate => overlap(candidate, span));
    return index < 0 ? null : [`candidates/${index}`, `candidate ${letterOf(index)}`, index];
  }

  #paint({node, blank, text, start, end}) {
    const mark = this.#markOf({start, end}), [place, name, index] = mark ?? [];
    node.className = !mark ? "" : index === undefined ? "marked is-pronoun" : `marked ${choiceClass(index)}`;
    node.classList.toggle("faulty", place in this.faults);
    if (blank) return;
    node.ariaPressed = String(Boolean(mark));
    node.ariaLabel = mark ? `${visible(text)}, ${name}` : null;
    node.ariaInvalid = place in this.faults ? "true" : null;
  }

  #showList() {
    const {pronoun, candidates} = this.marks, held = this.list.contains(document.activeElement) ? document.activeElement : null;
    const sign = element("span", {className: "badge is-pronoun", textContent: "pronoun"});
    this.list.replaceChildren(
      ...pronoun ? [this.#listed("pronoun", sign, pronoun)] : [],
      ...candidates.map((span, index) => this.#listed(`candidates/${index}`, badge(index), span, this.#rightButton(index, span))));
    if (!held) return;
    const again = [...this.list.querySelectorAll("button")].find(one => one.className === held.className && one.value === held.value);
    (again ?? this.words[this.to]?.node)?.focus();
  }

  #listed(place, sign, span, ...controls) {
    const name = this.#quoted(span), fault = this.faults[place];
    const remove = element("button", {type: "button", className: "remove", value: place, textContent: "×",
      ariaLabel: `Take the mark of ${name} away`, onclick: () => this.#change({without: place}, `${name} is not marked any more.`)});
    return element("li", {}, sign, element("bdi", {textContent: name}),
      element("span", {className: "quiet", textContent: `${span.start}–${span.end}`}), ...controls, remove,
      ...fault ? [element("p", {className: "fault", role: "alert", textContent: visible(fault)})] : []);
  }

  #rightButton(index, span) {
    const is = index === this.marks.gold, name = this.#quoted(span), textContent = is ? "✓ right" : "right?";
    const said = is ? "No candidate is said to be right." : `${name} is right.`;
    return element("button", {type: "button", className: "right", value: `candidates/${index}`, textContent, ariaPressed: String(is),
      ariaLabel: `${textContent} ${name}`, onclick: () => this.#change({gold: is ? null : index}, said)});
  }

  #quoted(span) {
    return `“${visible(slice(this.text, span))}”`;
  }

  #change({mark, as, without, gold}, said) {
    const marks = this.marks, right = gold === undefined ? marks.candidates[marks.gold] : marks.candidates[gold];
    const stays = (span, place) => span && place !== without && !(mark && overlap(span, mark));
    let candidates = marks.candidates.filter((span, index) => stays(span, `candidates/${index}`));
    let pronoun = stays(marks.pronoun, "pronoun") ? marks.pronoun : null;
    if (as === "pronoun") pronoun = mark;
    if (as === "candidate") candidates = [...candidates, mark].sort((a, b) => a.start - b.start);
    const place = candidates.indexOf(right);
    this.said.textContent = said;
    this.onMark({pronoun, candidates, gold: place < 0 ? null : place});
  }

  // Marks the words that are chosen as `role`, null as nothing. One word that is so already loses its mark
  #mark(role) {
    const [first, last] = [this.from, this.to].sort((a, b) => a - b).map(place => this.words[place]);
    const mark = {start: first.start, end: last.end}, [place, name] = this.#markOf(mark) ?? [];
    this.from = this.to;
    this.#showChosen();
    if (role === null || first === last && name?.startsWith(role)) {
      if (place) this.#change({without: place}, `${this.#quoted(mark)} is not marked any more.`);
    } else this.#change({mark, as: role}, `${this.#quoted(mark)} is ${ROLES[role]}.`);
  }

  #choose(to, {extend}) {
    this.to = to;
    if (!extend) this.from = to;
    for (const word of this.words) word.node.tabIndex = -1;
    this.words[to].node.tabIndex = 0;
    this.#showChosen();
  }

  #showChosen() {
    const [first, last] = [this.from, this.to].sort((a, b) => a - b);
    this.words.forEach((word, place) => word.node.classList.toggle("chosen", first !== last && first <= place && place <= last));
  }

  #listen() {
    const at = node => this.placeOf.get(node?.closest?.("button"));
    this.line.addEventListener("pointerdown", event => {
      const place = at(event.target);
      if (place === undefined || event.button) return;
      this.dragging = event.pointerId;
      this.marked = false;
      this.#choose(place, {extend: event.shiftKey});
    });
    this.line.addEventListener("pointermove", event => {
      if (event.pointerId !== this.dragging) return;
      const place = at(document.elementFromPoint(event.clientX, event.clientY));
      if (place !== undefined && place !== this.to) this.#choose(place, {extend: true});
    });
    addEventListener("pointerup", event => {
      if (event.pointerId !== this.dragging) return;
      this.dragging = null;
      this.marked = this.from !== this.to;
      if (this.marked) this.#mark(this.role);
    });
    addEventListener("pointercancel", event => { if (event.pointerId === this.dragging) this.dragging = null; });
    // The end of a drag may be a click too; one by the keyboard has no detail
    this.line.addEventListener("click", event => {
      const place = at(event.target);
      if (place === undefined || event.detail && this.marked) return;
      if (place !== this.to) this.#choose(place, {extend: false});
      this.#mark(this.role);
    });
    this.line.addEventListener("keydown", event => this.#press(event));
  }

  #press(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.words.length) return;
    const ahead = getComputedStyle(this.line).direction === "rtl" ? -1 : 1, last = this.words.length - 1;
    const to = {
      ArrowRight: this.to + ahead, ArrowLeft: this.to - ahead, ArrowDown: this.to + 1, ArrowUp: this.to - 1, Home: 0, End: last,
    }[event.key];
    if (to !== undefined) {
      this.#choose(Math.min(last, Math.max(0, to)), {extend: event.shiftKey});
      this.words[this.to].node.focus();
    } else if (event.key in KEYS) this.#mark(KEYS[event.key]);
    else return;
    event.preventDefault();
  }
}
