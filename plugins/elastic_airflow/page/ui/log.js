// What a job prints, live, for one rank of one attempt. Cards are drawn anew every two seconds; an open log is kept.

import { count, el, plural } from "./format.js";
import { base } from "./shell.js";

const PERIOD = 1000, BEHIND = 50, CHOOSING = 10000, MOST_CHARACTERS = 2 ** 20; // that are kept in the page: the last ones
const opened = new Map(); // by job id
const closed = new Set(); // by hand, though it was wanted
let choosingUntil = 0;

// `wanted`: open it, unless somebody has closed it.
export function logOf(job, wanted) {
  if (wanted && !opened.has(job.job_id) && !closed.has(job.job_id)) open(job.job_id);
  const view = opened.get(job.job_id);
  const button = el("button", { type: "button", "aria-expanded": Boolean(view) }, view ? "Hide log" : "Log");
  button.addEventListener("click", () => {
    if (opened.has(job.job_id)) close(job.job_id);
    else open(job.job_id);
    document.dispatchEvent(new Event("redraw"));
  });
  return { button, panel: view?.panel ?? null };
}

// Cards are replaced; an open log moves to the new one, with its place and the focus. A list that is unfolded would be
// folded by that: while somebody may be choosing from it, cards stay, but not for ever.
export function keepingLogs(redraw) {
  const focused = document.activeElement;
  if (focused?.closest(".log-top") && Date.now() < choosingUntil) return;
  const places = [...opened.values()].map((view) => [view.lines, view.lines.scrollTop]);
  redraw();
  for (const [lines, top] of places) lines.scrollTop = top;
  if (focused?.closest(".log")) focused.focus({ preventScroll: true });
}

function close(jobId) {
  clearTimeout(opened.get(jobId).timer);
  opened.delete(jobId);
  closed.add(jobId);
}

function open(jobId) {
  const view = { jobId, attempt: null, rank: 0, wanted: 0, seeking: false, end: null, shown: null, timer: null, turn: 0, held: 0 };
  view.lines = el("pre", { class: "lines", tabindex: "0", role: "log", "aria-label": `What ${jobId} prints` });
  view.attempts = el("select", { "aria-label": "Attempt" });
  view.ranks = el("select", { "aria-label": "Rank" });
  view.note = el("span", { class: "log-note" });
  view.panel = el("div", { class: "log" },
    el("div", { class: "log-top" }, el("label", {}, "Attempt ", view.attempts), el("label", {}, "Rank ", view.ranks), view.note), view.lines);
  for (const select of [view.attempts, view.ranks]) {
    for (const begun of ["pointerdown", "keydown"]) select.addEventListener(begun, () => { choosingUntil = Date.now() + CHOOSING; });
    for (const over of ["change", "blur"]) select.addEventListener(over, () => { choosingUntil = 0; });
  }
  view.attempts.addEventListener("change", () => choose(view, Number(view.attempts.value), 0));
  view.ranks.addEventListener("change", () => choose(view, view.shown.attempt, Number(view.ranks.value)));
  opened.set(jobId, view);
  follow(view);
}

function choose(view, attempt, rank) {
  Object.assign(view, { attempt: attempt === view.shown?.attempts ? null : attempt, rank, wanted: rank, seeking: false, end: null });
  view.lines.replaceChildren();
  view.held = 0;
  clearTimeout(view.timer);
  follow(view);
}

// Of several that were begun only the last one goes on: what it follows was chosen last.
async function follow(view) {
  const turn = ++view.turn;
  if (!document.hidden) await ask(view, turn);
  if (opened.get(view.jobId) === view && turn === view.turn) view.timer = setTimeout(() => follow(view), view.shown?.end < view.shown?.size ? BEHIND : PERIOD);
}

async function ask(view, turn) {
  const query = new URLSearchParams({ rank: view.rank });
  if (view.attempt !== null) query.set("attempt", view.attempt);
  else if (view.shown && view.end !== null) query.set("attempt", view.shown.attempt);
  if (view.end !== null) query.set("after", view.end);
  try {
    const answer = await fetch(`${base}/elastic/ui/jobs/${encodeURIComponent(view.jobId)}/log?${query}`, { credentials: "same-origin" });
    const log = await answer.json();
    if (!answer.ok) throw new Error(log.message ?? `The control API answered ${answer.status}.`);
    if (turn === view.turn) show(view, log);
  } catch (error) {
    if (turn === view.turn) view.note.replaceChildren(error.message);
  }
}

function show(view, log) {
  if (view.seeking && foundRank(view, log)) return;
  const atEnd = view.lines.scrollHeight - view.lines.scrollTop - view.lines.clientHeight < 40;
  view.end = log.end;
  if (!view.shown || view.shown.attempts !== log.attempts) choices(view.attempts, log.attempts, log.attempt, 1);
  if (!view.shown || view.shown.ranks !== log.ranks || view.shown.attempt !== log.attempt) choices(view.ranks, log.ranks, log.rank, 0);
  view.attempts.value = log.attempt;
  view.ranks.value = log.rank;
  view.shown = log;
  if (log.left_out) add(view, `... ${count(log.left_out)} bytes are not kept any more\n`);
  if (log.text) add(view, log.text);
  const segments = log.first_segment === log.last_segment ? `segment ${log.first_segment + 1}` : `segments ${log.first_segment + 1} to ${log.last_segment + 1}`;
  const state = log.ended ? "ended" : "live";
  view.note.replaceChildren(`${segments}, ${state}${log.size ? `, ${count(log.size)} bytes printed` : ", nothing printed yet"}`);
  if (atEnd) view.lines.scrollTop = view.lines.scrollHeight;
  // Another attempt has begun: go on with its first line.
  if (view.attempt === null && log.ended && log.end === log.size && log.attempt < log.attempts) {
    add(view, `--- attempt ${log.attempt + 1} of ${plural(log.attempts, "attempt")} ---\n`);
    Object.assign(view, { end: 0, rank: 0, seeking: view.wanted > 0 });
    view.shown = { ...log, attempt: log.attempt + 1, ranks: -1 };
  }
}

// An attempt has begun that may have the rank which is followed. Which ranks it has is known once its processes are there,
// so rank 0 is asked first; it is shown where it has printed and the other is not there. Whether the other is asked next.
function foundRank(view, log) {
  const there = log.ranks > view.wanted;
  if (there) view.rank = view.wanted;
  else if (log.size || log.ended) add(view, `--- it has no rank ${view.wanted}: rank 0 ---\n`);
  else return false;
  view.seeking = false;
  return there;
}

// As text: a job's lines are nothing that a browser is to read.
function add(view, text) {
  view.lines.append(text);
  view.held += text.length;
  while (view.held > MOST_CHARACTERS && view.lines.childNodes.length > 1) {
    view.held -= view.lines.firstChild.length;
    view.lines.firstChild.remove();
  }
}

function choices(select, number, chosen, first) {
  const options = Array.from({ length: Math.max(number, 1) }, (_, i) => el("option", { value: i + first, selected: i + first === chosen }, String(i + first)));
  select.replaceChildren(...options);
}
