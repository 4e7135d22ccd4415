// What is shown, to take along: files that the service writes from the same question, the link, and a command

import {element, visibleJson} from "./common.js";
import {ask, hasKey, root} from "./api.js";
import {Loading} from "./loading.js";

const FORMATS = {SVG: ["image/svg+xml", "svg"], PNG: ["image/png", "png"], CSV: ["text/csv", "csv"], JSON: ["application/json", "json"]};
const SHOWN = ["SVG", "PNG", "CSV"];

export class Export {
  constructor() {
    this.files = element("div", {className: "controls"});
    this.command = element("pre", {tabIndex: 0});
    this.command.setAttribute("aria-label", "Command");
    const status = element("p", {className: "status", role: "status"});
    this.loading = new Loading(status, this.files);
    const button = (textContent, onclick) => element("button", {type: "button", textContent, onclick});
    const copies = element("div", {className: "controls"},
      button("Copy link", () => this.copy(location.href)),
      button("Copy curl command", () => this.copy(this.command.textContent)), status);
    this.node = element("div", {className: "export"}, this.files, copies,
      element("details", {}, element("summary", {textContent: "The same with curl"}), this.command));
  }

  // `questions`: [{what, title?, path, body, file, formats?}, …], POSTs; `commands`: those that stand as commands
  offer(questions, commands = questions) {
    this.files.replaceChildren(...questions.map(question => element("div", {className: "files", role: "group", ariaLabel: question.what},
      element("span", {className: "quiet", textContent: question.title ?? question.what}),
      ...(question.formats ?? SHOWN).map(format => element("button",
        {type: "button", textContent: format, ariaLabel: `${question.what} as ${format}`, onclick: () => this.save(question, format)})))));
    this.command.textContent = commands.map(curl).join("\n\n");
  }

  save({what, path, body, file}, format) {
    const [accept, ending] = FORMATS[format];
    return this.loading.run(`${what} as ${format} …`, async (signal, waiting) => {
      const href = URL.createObjectURL(await (await ask(path, {body, accept, signal, waiting})).blob());
      element("a", {href, download: `${file}.${ending}`}).click();
      setTimeout(() => URL.revokeObjectURL(href), 60_000);  // once the browser has taken it
    });
  }

  async copy(text) {
    this.loading.say(await copied(text) ? "Copied." : "This browser does not let the page copy: select it and copy by hand.");
  }
}

// Between the quoted ENDs a shell changes nothing
function curl({path, body}) {
  const key = hasKey() ? ' -H "Authorization: Bearer $KEY"' : "", address = new URL(path, root).href.replaceAll("'", "%27");
  return `curl '${address}' -H 'Content-Type: application/json'${key} --data-binary @- <<'END'\n${visibleJson(body)}\nEND`;
}

// Pages that came by plain HTTP from another machine have no clipboard but this older way to it
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = element("textarea", {value: text, readOnly: true});
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
