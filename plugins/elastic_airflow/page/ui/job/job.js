// One job, whenever it ended: its card and log, how it went, how fast it would be, its segments and checkpoints.

import { stateChip } from "../allocations.js";
import { duration, el } from "../format.js";
import { card } from "../jobs.js";
import { keepingLogs } from "../log.js";
import { drawBanners, keepingFocus } from "../redrawing.js";
import { api, asked, base, followTheme, jobPage, link, ui } from "../shell.js";
import { Steering } from "../steering.js";
import { Checkpoints } from "./checkpoints.js";
import { drawCurve, drawLoss, drawMetric, drawMoves, metricNames } from "./course.js";
import { drawSegments } from "./segments.js";

const PERIOD = 2000, PARTS_PERIOD = 5000, TYPING = 250, LISTED = 25, REPORTS = 400, NEWEST = 500;
const NEWEST_FIRST = `descending=true&limit=${NEWEST}`;
const PARTS = { segments: `segments?${NEWEST_FIRST}`, checkpoints: `checkpoints?${NEWEST_FIRST}`, reports: `observations?most=${REPORTS}`, curve: "curve", moves: "moves", explanation: "explanation" };
const $ = (id) => document.getElementById(id);
let view = null;

function begin(jobId) {
  if (view) view.steering.gone = view.checkpoints.gone = true;
  view = { jobId, page: null, parts: {}, seen: {}, key: null, partsAt: -Infinity, asking: false, metric: null, errors: {} };
  view.steering = new Steering($("steering"), () => {}, again, jobId);
  view.checkpoints = new Checkpoints($("checkpoints"), again);
  $("shown").hidden = true;
  for (const id of ["card", "loss", "metrics", "curve", "moves", "checkpoints", "segments", "banners"]) $(id).replaceChildren();
  $("name").textContent = jobId ?? "A job";
  $("search").value = "";
}

// Airflow keeps this frame when its own address names another job.
async function refresh() {
  if (!view || asked("job") !== view.jobId) {
    begin(asked("job"));
    list();
  }
  if (view.jobId === null || view.asking) return;
  const mine = view;
  mine.asking = true;
  try {
    await ask(mine);
  } finally {
    mine.asking = false;
  }
}

async function ask(mine) {
  try {
    mine.page = await ui(`jobs/${encodeURIComponent(mine.jobId)}/page`);
    mine.errors.page = null;
  } catch (error) {
    mine.errors.page = error.status === 404 && !mine.page ? await notThere(mine.jobId, error) : error.message;
  }
  if (mine !== view) return;
  complain();
  if (!mine.page) return;
  draw();
  const key = JSON.stringify([mine.page.job.state, mine.page.job.segment_state, mine.page.job.segment_id, mine.page.job.step, mine.page.job.lineage]);
  if (Date.now() - mine.partsAt < PARTS_PERIOD) return;
  // Why it has what it has may change while nothing of it does; what did not answer is asked for again.
  const due = (name) => key !== mine.key || mine.errors[name] || (name === "explanation" && mine.page.job.state === "active");
  const names = Object.keys(PARTS).filter(due);
  Object.assign(mine, { key, partsAt: Date.now() });
  if (names.length) await askParts(mine, names);
}

function again() {
  Object.assign(view, { key: null, partsAt: -Infinity });
  return refresh();
}

// Of a job that the ledger does not know its submission may say why.
async function notThere(jobId, error) {
  try {
    const submission = await api(`jobs/${encodeURIComponent(jobId)}/submission`);
    if (submission.state === "starting") return "It was submitted: its run in Airflow inspects its task now.";
    if (submission.error) return `It was refused: ${submission.error}`;
  } catch { /* then there is nothing more to say than this */ }
  return error.message;
}

async function askParts(mine, names) {
  await Promise.all(names.map(async (name) => {
    try {
      mine.parts[name] = await api(`jobs/${encodeURIComponent(mine.jobId)}/${PARTS[name]}`);
      mine.errors[name] = null;
    } catch (error) {
      mine.errors[name] = `${name[0].toUpperCase()}${name.slice(1)}: ${error.message}`;
    }
  }));
  if (mine === view) {
    complain();
    drawParts();
  }
}

function complain() {
  const told = [...new Set(Object.values(view.errors).filter(Boolean))];
  const after = view.page && view.errors.page ? " Shown is what was known last." : "";
  drawBanners($("banners"), told.map((message) => el("p", { class: "banner bad" }, message, message === view.errors.page ? after : "")));
}

function draw() {
  const { job, now } = view.page;
  $("name").textContent = job.name;
  document.title = `${job.name}: Elastic`;
  $("shown").hidden = false;
  keepingFocus($("card"), () => keepingLogs(() => $("card").replaceChildren(card(job, now, () => "var(--accent)", true))));
  $("steering").hidden = job.state === "finished";
  view.steering.ended(job.state !== "active");
}

function drawParts() {
  const { page, page: { job, now }, parts, seen } = view;
  // A part is drawn anew only where it, or what it is drawn with, is another.
  const once = (id, data, redraw) => {
    const text = JSON.stringify(data);
    if (data.includes(undefined) || seen[id] === text) return;
    seen[id] = text;
    keepingFocus($(id), redraw);
  };
  const { segments, checkpoints, reports, curve, moves, explanation } = parts;
  once("segments", [segments, segments?.segments.some((one) => one.lease_live) ? now : 0], () => drawSegments($("segments"), segments, now));
  once("checkpoints", [checkpoints, job.lineage, page.kept_steps, page.versions], () => view.checkpoints.draw(checkpoints, page));
  once("loss", [reports, job.lineage, page.kept_steps], () => drawLoss($("loss"), reports, page));
  if (reports && checkpoints) drawMetrics(once);
  once("curve", [curve, job.slots], () => drawCurve($("curve"), curve, job));
  once("moves", [moves], () => drawMoves($("moves"), moves));
  once("decision", [explanation, job.state, now], () => drawDecision(explanation, job, now));
}

function drawMetrics(once) {
  const { page, page: { job, metric }, parts: { reports, checkpoints } } = view;
  const committed = checkpoints.checkpoints.toReversed(); // the oldest first, as the reports
  const names = metricNames(reports, committed);
  if (!names.includes(view.metric)) view.metric = names.includes(metric) ? metric : (names[0] ?? null);
  once("metric", [names, view.metric], () => $("metric").replaceChildren(...names.map((name) => el("option", { value: name, selected: name === view.metric }, name))));
  $("metric").hidden = !names.length;
  once("metrics", [view.metric, reports, committed, job.lineage, page.kept_steps], () => drawMetric($("metrics"), view.metric, reports, committed, page));
}

function drawDecision({ decision_id: number, decided_at: at, policy, trigger }, job, now) {
  $("decision").hidden = job.state !== "active" || number === null;
  if ($("decision").hidden) return;
  const place = link(el("a", {}, `decision ${number}`), `${base}/plugin/elastic-decisions?decision=${number}`);
  $("decision").replaceChildren("What it holds was last spoken of in ", place, `, by ${policy}, ${duration(now - at)} ago, after: ${trigger}`);
}

// Jobs to choose from: where the address names none, or while one is looked for.
async function list() {
  const wanted = $("search").value.trim(), mine = view;
  $("choose").hidden = view.jobId !== null && !wanted;
  if ($("choose").hidden) return;
  try {
    const query = new URLSearchParams({ search: wanted, sort: "submitted", descending: true, limit: LISTED });
    const { jobs } = await api(`jobs?${query}`);
    if (mine !== view || wanted !== $("search").value.trim()) return;
    mine.errors.list = null;
    $("found").replaceChildren(...jobs.map((job) => el("li", {}, link(el("a", {}, job.spec.name), jobPage(job.job_id)), el("span", { class: "id" }, job.job_id), stateChip(job), el("span", { class: "when" }, `submitted ${duration(Date.now() / 1000 - job.submitted_at)} ago${job.submitted_by ? ` by ${job.submitted_by}` : ""}`))));
    $("none").hidden = jobs.length > 0;
    $("found").setAttribute("aria-busy", "false");
  } catch (error) {
    mine.errors.list = error.message;
  }
  if (mine === view) complain();
}

let typing = null, resizing = null;
followTheme();
for (const [id, route] of [["cluster", "elastic"], ["jobs", "elastic-jobs"], ["what-if", "elastic-what-if"], ["decisions", "elastic-decisions"], ["models", "elastic-models"]]) link($(id), `${base}/plugin/${route}`);
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(list, TYPING);
});
$("metric").addEventListener("change", () => {
  view.metric = $("metric").value;
  drawParts();
});
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const id of ["loss", "metrics", "curve"]) delete view.seen[id];
    if (view.page) drawParts();
  }, TYPING);
});
document.addEventListener("redraw", () => view.page && draw());
document.addEventListener("visibilitychange", () => document.hidden || refresh());
await refresh();
setInterval(() => document.hidden || refresh(), PERIOD);
