// Registered models: their versions, what each was made of, and which one is the champion; promoted and rolled back here.

import { count, el, measure } from "../format.js";
import { drawBanners } from "../redrawing.js";
import { api, asked, base, followTheme, jobPage, link } from "../shell.js";

const PERIOD = 10000, PAGE = 50, MOST = 500; // of a list: at first, and of one answer
const NONE = "No model was registered yet: a job registers one when it has trained.";
const $ = (id) => document.getElementById(id);
const view = { chosen: asked("model"), listed: PAGE, shown: "", said: "", busy: false, asking: false, errors: {} };

// Of the list and of the model that is shown, each its own.
function complain(about, error) {
  view.errors[about] = error?.message;
  const told = [...new Set(Object.values(view.errors).filter(Boolean))];
  drawBanners($("banners"), told.map((message) => el("p", { class: "banner bad" }, message)));
}

async function refresh() {
  view.again = view.asking; // what is asked for meanwhile comes after it
  if (view.asking) return;
  view.asking = true;
  try {
    const { models, total } = await api(`models?${new URLSearchParams({ search: $("search").value.trim(), limit: view.listed })}`);
    drawList(models, total);
    complain("list", null);
    if (view.chosen === null && models.length) view.chosen = models[0].name;
    if (view.chosen !== null) await show();
  } catch (error) {
    complain("list", error);
  }
  view.asking = false;
  if (view.again) refresh();
}

function drawList(models, total) {
  const focused = document.activeElement?.closest("#list button")?.dataset.name;
  $("list").replaceChildren(...models.map((model) => {
    const button = el("button", { type: "button", "data-name": model.name, "aria-current": model.name === view.chosen ? "true" : null },
      model.name, el("span", { class: "when" }, model.newest === null ? "no version" : `newest ${model.newest}`),
      el("span", { class: "why" }, model.champion === null ? "no champion" : `champion ${model.champion}`, model.challenger === null ? "" : `; challenger ${model.challenger} waits for a word`));
    button.addEventListener("click", () => choose(model.name));
    return el("li", {}, button);
  }));
  if (focused) [...$("list").querySelectorAll("button")].find((button) => button.dataset.name === focused)?.focus({ preventScroll: true });
  $("list").setAttribute("aria-busy", "false");
  $("none").hidden = total > 0;
  $("none").textContent = $("search").value.trim() ? "No registered model has that in its name." : NONE;
  $("more").hidden = models.length >= Math.min(total, MOST);
  $("more").textContent = `${count(Math.min(PAGE, total - models.length))} more of ${count(total)}`;
}

function choose(name) {
  Object.assign(view, { chosen: name, said: "", busy: false });
  for (const button of $("list").querySelectorAll("button")) {
    if (button.dataset.name === name) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  show();
}

async function show() {
  const name = view.chosen;
  try {
    const shown = await api(`models/${encodeURIComponent(name)}`);
    if (view.chosen !== name || view.busy) return;
    const told = JSON.stringify([shown, view.said]);
    if (told !== view.shown) $("shown").replaceChildren(...drawn(shown)); // what has not changed keeps its focus
    view.shown = told;
    complain("shown", null);
  } catch (error) {
    if (view.chosen === name) complain("shown", error);
  }
}

function drawn({ model, versions, registered, roll_back_to: former, page }) {
  const facts = [["Champion", model.champion ?? "none"], ["Challenger", model.challenger ?? "none"], ["Champions before", model.former.join(", ") || "none"], ["Versions", count(registered)]];
  const said = el("div", { class: "said" }), rows = versions.map((version) => row(model, version, said));
  const back = former === null ? "" : el("button", { type: "button" }, `Roll back to version ${former}`);
  if (back) back.addEventListener("click", () => sure(said, `Make version ${former} of ${model.name} the champion again?`, "roll back", `roll-back?to=${encodeURIComponent(former)}`));
  said.append(...[back, el("span", { role: "status" }, view.said)].filter(Boolean));
  const heads = ["Version", "Aliases", "Made by", "Step", "On held-out data", "Registered", "What to do"];
  const head = el("tr", {}, ...heads.map((text, i) => el("th", { scope: "col", class: i === 3 ? "number" : null }, text)));
  return [
    el("h3", {}, model.name), el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    said, el("div", { class: "scroll" }, el("table", { "aria-label": "Versions, newest first" }, el("thead", {}, head), el("tbody", {}, ...rows))),
    el("p", {}, link(el("a", {}, "This model in MLflow"), page, true)),
  ];
}

function row(model, version, said) {
  const job = version.job_id === null ? "nobody that the ledger knows" : link(el("a", {}, version.job_id), jobPage(version.job_id));
  const metrics = Object.entries(version.metrics).map(([name, value]) => `${name} ${measure(value)}`).join(", ") || "-";
  const promote = el("button", { type: "button" }, "Promote");
  promote.disabled = version.version === model.champion;
  promote.setAttribute("aria-label", `Promote version ${version.version}`);
  promote.addEventListener("click", () => sure(said, `Make version ${version.version} the champion of ${model.name}, whatever its metrics?`, "promote", `versions/${version.version}/promote`));
  const cells = [
    version.version, el("span", {}, ...version.aliases.map((alias) => el("span", { class: `alias ${alias}` }, alias))), job,
    version.job_id === null ? "-" : count(version.step), metrics, new Date(version.at * 1000).toLocaleString(), promote,
  ];
  return el("tr", { "data-version": version.version }, ...cells.map((cell, i) => el("td", { class: i === 3 ? "number" : null }, cell)));
}

// In the page itself: Airflow's frame allows no dialogs.
function sure(said, question, act, path) {
  view.busy = true;
  const yes = el("button", { type: "button" }, `Yes, ${act}`), no = el("button", { type: "button" }, "No");
  yes.addEventListener("click", () => carryOut(path));
  no.addEventListener("click", () => again(""));
  said.replaceChildren(el("span", { role: "status" }, question), yes, no);
  no.focus();
}

async function carryOut(path) {
  const name = view.chosen;
  try {
    const moved = await api(`models/${encodeURIComponent(name)}/${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
    again(`Version ${moved.now} is the champion${moved.before === null || moved.before === moved.now ? "" : `; before it was ${moved.before}`}.`);
  } catch (error) {
    again(`Not done: ${error.message}`);
  }
}

async function again(said) {
  Object.assign(view, { said, busy: false, shown: "" });
  await show();
  refresh();
}

let typed = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => {
    view.listed = PAGE;
    refresh();
  }, 300);
});
$("more").addEventListener("click", () => {
  view.listed = Math.min(view.listed + PAGE, MOST);
  refresh();
});
followTheme();
link($("cluster"), `${base}/plugin/elastic`);
link($("jobs"), `${base}/plugin/elastic-jobs`);
link($("what-if"), `${base}/plugin/elastic-what-if`);
link($("decisions"), `${base}/plugin/elastic-decisions`);
refresh();
setInterval(() => document.hidden || view.busy || refresh(), PERIOD);
