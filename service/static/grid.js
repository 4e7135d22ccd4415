// The grid of layers and heads: layers down, heads across. One cell is reached by Tab, arrows move from there

import {element} from "./common.js";

export const titleOf = ({layer, head}) => `Layer ${layer}, head ${head}`;
export const nameOf = ({layer, head}) => `L${layer}H${head}`;

// Fills `table`, of role grid. What cells look like and say is the caller's: see `paint`. `onShow(cell, kept)` is told
// of the cell that is pointed at, focused or kept; a click, Enter or Space keep it, and it comes back when the pointer
// leaves. Kept again it is let go, as by Escape; where `sticky` one is always kept, once one was, and Escape goes back to it
export class HeadGrid {
  constructor(table, {layers, heads, sticky = false, onShow = () => {}}) {
    Object.assign(this, {table, sticky, onShow, current: null, pinned: null});
    this.rows = layers.map((layer, y) => heads.map((head, x) => {
      const node = element("td", {tabIndex: -1, ariaSelected: "false"}), name = nameOf({layer, head});
      node.dataset.name = name;
      return {layer, head, name, node, x, y};
    }));
    this.cells = this.rows.flat();
    this.byName = new Map(this.cells.map(cell => [cell.name, cell]));

    table.role = "grid";
    table.ariaLabel = "Heads: arrow keys move, Enter keeps";
    table.createCaption().textContent = "layers ↓ \u00a0 heads →";
    table.classList.add("head-grid");
    table.style.setProperty("--heads", heads.length);
    table.style.setProperty("--least", `${Math.max(16, 8 * String(heads.at(-1)).length)}px`);
    table.style.setProperty("--tall", `${Math.min(24, Math.max(12, Math.round(520 / layers.length)))}px`);
    const header = (scope, textContent) => element("th", {scope, textContent});
    table.createTHead().replaceChildren(element("tr", {}, element("td"), ...heads.map(head => header("col", head))));
    const body = table.tBodies[0] ?? table.createTBody();
    body.replaceChildren(...this.rows.map((row, y) =>
      element("tr", {}, header("row", layers[y]), ...row.map(cell => cell.node))));
    this.#listen(body);
    this.reach(this.cells[0]);
  }

  at(name) {
    return this.byName.get(name) ?? null;
  }

  paint(look) {
    this.cells.forEach(look);
  }

  show(name) {
    this.#show(this.at(name));
  }

  // Keeps the head of that name; null lets go
  pin(name) {
    const cell = this.at(name);
    if (this.pinned) this.pinned.node.ariaSelected = "false";
    this.pinned = cell;
    if (cell) {
      cell.node.ariaSelected = "true";
      this.reach(cell);
    }
    if (cell ?? this.current) this.#show(cell ?? this.current);
  }

  // Tab reaches one cell of the grid: the one that was reached last
  reach(cell) {
    for (const one of this.cells) one.node.tabIndex = one === cell ? 0 : -1;
  }

  #show(cell) {
    this.current?.node.classList.remove("current");
    this.current = cell;
    cell.node.classList.add("current");
    this.onShow(cell, cell === this.pinned);
  }

  #keep(cell) {
    this.pin(cell === this.pinned && !this.sticky ? null : cell.name);
  }

  #letGo() {
    if (!this.sticky) this.pin(null);
    else this.pinned?.node.focus();
  }

  #listen(body) {
    const over = act => event => {
      const cell = this.at(event.target.closest("td")?.dataset.name);
      if (cell) act(cell, event);
    };
    body.addEventListener("pointerover", over(cell => this.#show(cell)));
    body.addEventListener("pointerleave", () => { if (this.pinned) this.#show(this.pinned); });
    body.addEventListener("focusin", over(cell => {
      this.reach(cell);
      this.#show(cell);
    }));
    body.addEventListener("click", over(cell => this.#keep(cell)));
    body.addEventListener("keydown", over((cell, event) => this.#press(cell, event)));
  }

  #press({x, y, name}, event) {
    if (event.altKey || event.metaKey) return;  // the browser's own
    const end = this.rows[0].length - 1;
    if (event.key === "Enter" || event.key === " ") this.#keep(this.at(name));
    else if (event.key === "Escape") this.#letGo();
    else {
      const [down, across] = {
        ArrowUp: [y - 1, x], ArrowDown: [y + 1, x], ArrowLeft: [y, x - 1], ArrowRight: [y, x + 1],
        Home: [event.ctrlKey ? 0 : y, 0], End: [event.ctrlKey ? this.rows.length - 1 : y, end],
      }[event.key] ?? [];
      if (down === undefined) return;
      this.rows[down]?.[across]?.node.focus();
    }
    event.preventDefault();
  }
}
