// Questions to the service this page comes from. Addresses are relative: the service may stand below a path prefix

export class Problem extends Error {
  // `body` is the service's problem+json; null where something in between, or nothing, answered
  constructor(status, body, retryAfter = null) {
    super(body?.detail || body?.title || (status ? `The service answered ${status}.` : "The service cannot be reached."));
    Object.assign(this, {status, body, retryAfter, slug: body?.type?.split("/").at(-1) ?? null});
  }

  // The same in other words
  told(detail) {
    return new Problem(this.status, {...this.body, detail}, this.retryAfter);
  }

  get errors() {
    return this.body?.errors ?? [];
  }

  has(code) {
    return this.errors.some(error => error.code === code);
  }
}

const MOST_WAITS = 20;
const SENDABLE = /^[!-~]+$/;  // what a header can hold, and the service takes as a key
export const sendable = key => SENDABLE.test(key);

let key = sessionKey();
let askForKey = async () => null;

// Where the service wants a key: `ask` is called with why, and gives one, or null to give up
export function whenAKeyIsNeeded(ask) {
  askForKey = ask;
}

export const hasKey = () => key !== null;

// A GET, or with `body` a POST, in the format that `accept` names. Busy and not ready are waited out as long as the service
// says, and told to `waiting(problem, seconds)`. Throws Problem, or AbortError once `signal` is aborted
export async function ask(path, {body, accept = "application/json", signal, waiting = () => {}} = {}) {
  for (let waits = 0; ; waits++) {
    const used = key;
    try {
      return await once(path, {body, accept, signal});
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 401) {
        if (used !== key) continue;  // another question was given one meanwhile
        const given = await askForKey(error.message);
        if (given === null) throw error;
        key = given;
      } else if ((error.status === 429 || error.status === 503) && error.retryAfter !== null && waits < MOST_WAITS) {
        waiting(error, error.retryAfter);
        await pause(error.retryAfter, signal);
      } else throw error;
    }
  }
}

export const askJson = async (path, options) => (await ask(path, options)).json();

async function once(path, {body, accept, signal}) {
  const headers = {Accept: accept};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    const asked = body === undefined ? {} : {method: "POST", body: JSON.stringify(body)};
    response = await fetch(new URL(path, root), {...asked, headers, signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, null);
  }
  if (key !== null && response.status !== 401) keepKey();
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  signal?.throwIfAborted();  // what was given up has no problem
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  throw new Problem(response.status, problem, Number.isFinite(seconds) ? seconds : null);
}

// A browser may let the page store nothing: then a key lasts until the page is left
function sessionKey() {
  try {
    const stored = sessionStorage.getItem("key");
    return stored !== null && sendable(stored) ? stored : null;
  } catch {
    return null;
  }
}

function keepKey() {
  try {
    sessionStorage.setItem("key", key);
  } catch {}
}

async function pause(seconds, signal) {
  signal?.throwIfAborted();
  const over = new AbortController();  // takes the listener away with the timer
  await new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, {once: true, signal: over.signal});
  }).finally(() => over.abort());
}

// The service's address: these modules lie in its folder `static`
export const root = new URL("../", import.meta.url);
