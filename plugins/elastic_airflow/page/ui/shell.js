// What the page takes from the Airflow UI around it: colours (dark or light) and a way to its pages.
// Airflow's frame forbids pop-ups and top navigation, but is of our own origin: links go through the parent's document.

const framed = window.parent !== window;
export const base = location.pathname.replace(/\/elastic\/page\/.*$/, "");

export function followTheme() {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const outer = framed ? window.parent.document.documentElement : null;
  const apply = () => {
    const named = outer ? (outer.dataset.theme ?? outer.className) : "";
    const dark = /dark/.test(named) || (!/light/.test(named) && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  };
  apply();
  system.addEventListener("change", apply);
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class", "data-theme"] });
}

// Airflow keeps the query of its own address to itself.
export function asked(name) {
  return new URLSearchParams((framed ? window.parent : window).location.search).get(name);
}

export function jobPage(jobId, log = false) {
  const query = new URLSearchParams(log ? { job: jobId, log: jobId } : { job: jobId });
  return `${base}/plugin/elastic-job?${query}`;
}

// Why an answer to a question about jobs is none, or one to something that was to be done (`acts`).
export async function problem(answer, acts = false) {
  if (answer.status === 401) return "You are not logged in any more: reload Airflow's page.";
  const body = await answer.json().catch(() => ({}));
  if (body.message) return body.message;
  if (answer.status === 403) return acts ? "It takes Airflow's right to start runs of elastic_job." : "You may not see jobs: it takes Airflow's right to read runs of elastic_job.";
  return `The control API answered ${answer.status}.`;
}

// What the REST API answers. Throws its words where that is no answer.
export const api = (path, options = {}) => answered(`${base}/elastic/api/v1/${path}`, options);

// The same of the pages' own routes.
export const ui = (path) => answered(`${base}/elastic/ui/${path}`);

async function answered(address, options = {}) {
  const answer = await fetch(address, { credentials: "same-origin", ...options });
  if (!answer.ok) throw Object.assign(new Error(await problem(answer, options.method === "POST")), { status: answer.status });
  return answer.json();
}

export function link(node, href, outside = false) {
  node.setAttribute("href", href);
  if (!framed) {
    if (outside) Object.assign(node, { target: "_blank", rel: "noopener" });
    return node;
  }
  node.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    outside ? openOutside(href) : openInside(href);
  });
  return node;
}

function openInside(href) {
  window.parent.history.pushState(null, "", href);
  window.parent.dispatchEvent(new window.parent.PopStateEvent("popstate", { state: null }));
}

function openOutside(href) {
  const anchor = window.parent.document.createElement("a");
  Object.assign(anchor, { href, target: "_blank", rel: "noopener" });
  anchor.click();
}
