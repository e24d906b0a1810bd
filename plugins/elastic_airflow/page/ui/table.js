// All jobs, a page at a time: the server searches, filters and sorts. Asked for anew every few seconds while somebody looks.

import { layout, stateChip } from "./allocations.js";
import { clock, count, duration, el, measure, soonOrDate, starting } from "./format.js";
import { drawBanners } from "./redrawing.js";
import { api, base, followTheme, jobPage, link } from "./shell.js";
import { Steering } from "./steering.js";

const PERIOD = 5000, TYPING = 250;
const $ = (id) => document.getElementById(id);
// Name, the server's word for sorting by it (null: it does not), and classes; then the same of its second line, if sorted.
const COLUMNS = [
  ["Job", "id", "job"], ["State", "state", "state"], ["Queue", "queue", "queue"], ["User", null, "user"],
  ["Priority", "priority", "priority number"], ["Place", "place", "place number", "Starts", "start"], ["Progress", "progress", "progress"], ["Slots", "slots", "slots number"],
  ["Time left", "left", "left number"], ["Spent", "spent", "spent number"], ["Submitted", "submitted", "submitted number"],
];
const LARGEST_FIRST = new Set(["priority", "progress", "slots", "spent", "submitted"]);
const view = { sort: "submitted", descending: true, offset: 0, asked: 0, data: null };
const steering = new Steering($("steering"), drawRows, refresh);

function heads() {
  const all = el("input", { type: "checkbox", "aria-label": "Choose all jobs of this page" });
  all.addEventListener("change", () => {
    steering.choose(active().map((job) => job.job_id), all.checked);
    drawRows();
  });
  const cells = COLUMNS.map(([name, key, kind, second, secondKey]) => {
    const head = el("th", { class: kind.split(" ").map((word, i) => (i ? word : `c-${word}`)).join(" "), scope: "col" });
    head.append(key ? sorter(name, key) : name, ...(secondKey ? [el("br"), sorter(second, secondKey)] : []));
    return head;
  });
  $("heads").replaceChildren(el("th", { class: "c-box", scope: "col" }, all), ...cells, el("th", { class: "c-links", scope: "col" }, "Go to"));
}

function sorter(name, key) {
  const button = el("button", { type: "button", "data-sort": key }, name);
  button.addEventListener("click", () => sortBy(key));
  return button;
}

function sortBy(key) {
  view.descending = view.sort === key ? !view.descending : LARGEST_FIRST.has(key);
  Object.assign(view, { sort: key, offset: 0 });
  refresh();
}

const active = () => (view.data?.jobs ?? []).filter((job) => job.state === "active");

async function refresh() {
  const number = ++view.asked;
  const query = new URLSearchParams({ sort: view.sort, descending: view.descending, offset: view.offset, limit: $("limit").value });
  for (const name of ["search", "state", "queue", "user"]) if ($(name).value.trim()) query.set(name, $(name).value.trim());
  let failure = null;
  try {
    const data = await api(`jobs?${query}`);
    if (number !== view.asked) return; // a later question has been put
    view.data = data;
  } catch (error) {
    if (number !== view.asked) return;
    failure = error.message;
  }
  drawBanners($("banners"), failure ? [el("p", { class: "banner bad" }, failure, view.data ? " Shown is what was known last." : "")] : []);
  if (view.data) draw();
}

function draw() {
  const { total, jobs } = view.data, limit = Number($("limit").value);
  if (!jobs.length && total && view.offset) { // jobs have gone: the last page that there is
    view.offset = Math.floor((total - 1) / limit) * limit;
    refresh();
    return;
  }
  steering.shown(active().map((job) => job.job_id));
  for (const cell of $("heads").querySelectorAll("[aria-sort]")) cell.removeAttribute("aria-sort");
  for (const head of $("heads").querySelectorAll("[data-sort]")) {
    const sorted = head.dataset.sort === view.sort;
    if (sorted) head.parentNode.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
    head.textContent = head.textContent.replace(/ [▲▼]$/, "") + (sorted ? (view.descending ? " ▼" : " ▲") : "");
  }
  drawRows();
  document.querySelector("table").setAttribute("aria-busy", "false");
  $("none").hidden = jobs.length > 0;
  $("place").textContent = total ? `${count(view.offset + 1)} to ${count(view.offset + jobs.length)} of ${count(total)}` : "0 jobs";
  $("previous").disabled = !view.offset;
  $("next").disabled = view.offset + jobs.length >= total;
}

function drawRows() {
  const focused = document.activeElement?.closest("#rows input")?.dataset.job;
  $("rows").replaceChildren(...view.data.jobs.flatMap((job) => [row(job), why(job)]));
  if (focused) [...$("rows").querySelectorAll("input")].find((box) => box.dataset.job === focused)?.focus({ preventScroll: true });
  markAll();
}

function markAll() {
  const all = $("heads").querySelector("input"), shown = active().map((job) => job.job_id);
  all.disabled = !shown.length;
  all.checked = shown.length > 0 && shown.every((id) => steering.chosen.has(id));
}

function row(job) {
  const box = el("input", { type: "checkbox", "data-job": job.job_id, "aria-label": `Choose ${job.job_id}` });
  box.checked = steering.chosen.has(job.job_id);
  box.disabled = job.state !== "active";
  box.addEventListener("change", () => {
    steering.choose([job.job_id], box.checked);
    markAll();
  });
  const now = Date.now() / 1000, took = (job.finished_at ?? now) - job.submitted_at;
  const cells = [
    el("td", { title: job.job_id }, job.spec.name, el("span", { class: "id" }, job.job_id)),
    el("td", {}, stateChip(job)),
    el("td", { title: job.spec.queue }, job.spec.queue),
    el("td", { title: job.submitted_by }, job.submitted_by ?? "-"),
    el("td", { class: "number" }, String(job.changes.priority ?? job.spec.priority)),
    el("td", { class: "number", title: job.in_queue && `number ${job.in_queue.place} of ${job.in_queue.length} that wait; ${starting(job.in_queue, now)}` }, job.in_queue ? count(job.in_queue.place) : "-", below(starts(job, now))),
    el("td", {}, progress(job)),
    el("td", { class: "number" }, slots(job), below(job.allocation && `batch ${count(job.allocation.global_batch)}`)),
    el("td", { class: "number", title: finish(job) }, job.state === "active" ? (job.seconds_left === null ? "-" : duration(job.seconds_left)) : `took ${duration(took)}`, below(between(job))),
    el("td", { class: "number", title: job.expected_cost === null ? null : `expected in all: ${measure(job.expected_cost)}` }, job.spent ? measure(job.spent) : "-", below(job.expected_cost && `of ${measure(job.expected_cost)}`)),
    el("td", { class: "number", title: new Date(job.submitted_at * 1000).toLocaleString() }, `${duration(now - job.submitted_at)} ago`),
    el("td", {}, place("Page", jobPage(job.job_id)), " ", place("Log", jobPage(job.job_id, true))),
  ];
  return el("tr", { "data-id": job.job_id }, el("td", {}, box), ...cells);
}

function starts(job, now) {
  if (!job.in_queue) return null;
  const at = job.in_queue.starts_at;
  return at === null ? "not known" : at <= now ? "soon" : soonOrDate(at, now);
}

// Of a waiting job what it needs and who has it; the policy's reason, which says much the same, is behind that. Of one that
// holds slots first how it uses them.
function why(job) {
  const now = Date.now() / 1000;
  const reason = job.in_queue ? `${job.in_queue.words}; ${starting(job.in_queue, now)}` : job.target_reason;
  const text = job.state === "active" ? [cut(job), reason].filter(Boolean).join(". ") : (job.error ?? "");
  const title = job.in_queue && job.target_reason ? `${text}. ${job.target_reason}` : text;
  return el("tr", { class: "why" }, el("td"), el("td", { colspan: COLUMNS.length + 1, title, class: job.state === "failed" ? "error" : null }, text || " "));
}

function progress(job) {
  const part = job.total_samples ? Math.min(1, job.done_samples / job.total_samples) : 0, percent = Math.round(100 * part);
  const inner = el("span");
  inner.style.width = `${100 * part}%`;
  inner.style.background = "var(--accent)";
  const bar = { class: "track", role: "progressbar", "aria-label": `Progress of ${job.job_id}`, "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100 };
  return el("div", { class: "progress" }, el("div", bar, inner), el("span", { class: "percent" }, `${percent} %`));
}

function slots(job) {
  const least = job.changes.min_slots ?? job.spec.slots.min, most = job.changes.max_slots ?? job.spec.slots.max;
  return `${job.allocation ? job.allocation.slots.length : 0} / ${least === most ? most : `${least}-${most}`}`;
}

// A second line of a cell; nothing where there is nothing to say.
function below(text) {
  return text ? el("span", { class: "below" }, text) : null;
}

// How the model is cut over its slots, and what its ranks exchange.
function cut(job) {
  return job.allocation && `Layout: ${layout(job.allocation.layout)}; exchange: ${job.allocation.comm}`;
}

// Of a job that holds slots on these, of one that waits once it had its turn.
function expected(job) {
  const forecast = job.state === "active" ? job.forecast : null;
  return forecast && (forecast.assumes === "waits its turn" ? job.in_queue : job.allocation) ? forecast.finish_at : null;
}

function finish(job) {
  const at = expected(job);
  return at ? `done at ${at.map((time) => new Date(time * 1000).toLocaleString()).join(", ")} (low, median, high)${job.allocation ? "" : ", after those before it in the queue"}` : null;
}

// Of days, since a clock alone would not tell which.
function between(job) {
  const at = expected(job);
  if (!at) return null;
  const now = Date.now() / 1000, low = Math.max(at[0], now), high = at[2];
  return high - now < 20 * 3600 ? `${clock(low)} to ${clock(high)}` : `${duration(low - now)} to ${duration(high - now)}`;
}

function place(text, href) {
  const anchor = link(el("a"), href);
  anchor.append(text);
  return anchor;
}

let typing = null;
followTheme();
heads();
link($("cluster"), `${base}/plugin/elastic`);
link($("what-if"), `${base}/plugin/elastic-what-if`);
link($("decisions"), `${base}/plugin/elastic-decisions`);
link($("models"), `${base}/plugin/elastic-models`);
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  view.offset = 0;
  typing = setTimeout(refresh, TYPING);
});
$("limit").addEventListener("change", () => { view.offset = 0; refresh(); });
for (const [id, sign] of [["previous", -1], ["next", 1]]) {
  $(id).addEventListener("click", () => {
    view.offset = Math.max(0, view.offset + sign * Number($("limit").value));
    refresh();
  });
}
document.addEventListener("visibilitychange", () => document.hidden || refresh());
await refresh();
setInterval(() => document.hidden || refresh(), PERIOD);
