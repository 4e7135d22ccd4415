// Starts Swagger UI on this service's contract. All addresses follow from this script's own, so that the page works
// under whatever prefix a proxy shows it.
"use strict";

const root = new URL("..", document.currentScript.src).href;

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

// Swagger UI fills every parameter's default in and sends it. Left out it means the same, the address stays short, and
// what goes only together with something else is not refused for standing alone.
function withoutDefaults(request) {
  const parameters = { ...request.parameters };
  for (const { name, in: place, schema } of request.operation.toJS().parameters ?? []) {
    const key = `${place}.${name}`;
    if (schema.default !== undefined && String(parameters[key]) === String(schema.default)) delete parameters[key];
  }
  return { ...request, parameters };
}

const here = {
  statePlugins: {
    spec: {
      wrapActions: {
        updateJsonSpec: (update) => (contract) =>
          update({ ...contract, servers: [{ url: root.replace(/\/$/, "") }] }),
        executeRequest: (execute) => (request) => execute(withoutDefaults(request)),
      },
    },
  },
};

SwaggerUIBundle({
  url: `${root}openapi.json`,
  dom_id: "#docs",
  plugins: [here],
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  syntaxHighlight: false, // of an answer as long as all heads' scores it holds the browser up for seconds
  validatorUrl: null, // the badge would ask another host
});
