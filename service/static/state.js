// What is on show: in the address's fragment, so that a view can be shared and "back" works. No server sees a fragment

const read = () => new URLSearchParams(location.hash.slice(1));
const listeners = new Set();
let current = read();

export const get = (name, otherwise = null) => current.get(name) ?? otherwise;

export function integer(name) {
  const given = get(name);
  return given !== null && /^\d{1,6}$/.test(given) ? Number(given) : null;
}

// null or "" takes a name away. `replace`: no step of its own to go back to
export function set(changes, {replace = false} = {}) {
  const next = changed(changes);
  if (String(next) === String(current)) return;
  history[replace ? "replaceState" : "pushState"](null, "", String(next) ? `#${next}` : location.pathname + location.search);
  tell(next);
}

// Where a link leads that changes the same
export const address = changes => `#${changed(changes)}`;

function changed(changes) {
  const next = new URLSearchParams(current);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, String(value));
  }
  return next;
}

// `listener` gets the names whose values are others than before, by whatever way they changed
export function subscribe(listener) {
  listeners.add(listener);
}

function tell(next) {
  const before = current;
  current = next;
  const names = new Set([...before.keys(), ...next.keys()].filter(name => before.get(name) !== next.get(name)));
  if (names.size) for (const listener of listeners) listener(names);
}

addEventListener("popstate", () => tell(read()));  // "back", "forward", and a fragment typed into the address
