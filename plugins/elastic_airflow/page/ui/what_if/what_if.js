// How the active jobs would fare with other nodes, another policy, other limits: asked of the server, which simulates both.

import { clock, count, duration, el, plural } from "../format.js";
import { keepingFocus } from "../redrawing.js";
import { api, base, followTheme, link } from "../shell.js";
import { waiting } from "../waiting.js";

const $ = (id) => document.getElementById(id);
const LIMITS = ["priority", "min_slots", "max_slots"];
const WORDS = { priority: "Priority", min_slots: "Min slots", max_slots: "Max slots" };
const PAGE = 50, MOST = 500; // jobs that are shown first and with each "more", and of one answer
const AGAIN = 1000, MOST_TRIES = 60; // while the server still simulates what was asked before, here or elsewhere
const limits = new Map(); // what is filled in of jobs, shown or not: {priority, ...} by job
const view = { told: null, shown: PAGE }; // the answer, and how many of its jobs
let asking = false, another = false;

// What is filled in, as the API takes it.
function question() {
  const wanted = {}, number = (input) => (input.value === "" ? null : Number(input.value));
  if ($("policy").value.trim()) wanted.policy = $("policy").value.trim();
  if ($("type").value.trim() || $("slots").value || $("count").value) {
    wanted.add = [{ type: $("type").value.trim(), num_slots: number($("slots")) ?? 1, count: number($("count")) ?? 1 }];
  }
  const without = $("without").value.split(/[\s,]+/).filter(Boolean);
  if (without.length) wanted.without = without;
  const jobs = [...limits].filter(([, given]) => Object.keys(given).length);
  if (jobs.length) wanted.jobs = Object.fromEntries(jobs);
  return wanted;
}

// The server answers one at a time: what is wanted meanwhile is asked once there is an answer, which then shows nothing.
async function ask() {
  another = true;
  if (asking) return;
  busy(true);
  while (another) {
    another = false;
    await askOnce();
  }
  busy(false);
}

// The button is not disabled: it would lose the focus.
function busy(yes) {
  asking = yes;
  document.querySelector("table").setAttribute("aria-busy", yes);
  $("ask").setAttribute("aria-disabled", yes);
}

async function askOnce() {
  const changes = question(), courses = Object.keys(changes).length ? 2 : 1;
  const stop = waiting($("summary"), "Being simulated", expected(courses));
  let told = null, failure = null;
  try {
    told = await answered(changes);
  } catch (error) {
    failure = error.message;
  }
  stop();
  if (another) return;
  if (told) draw(told);
  else $("summary").textContent = "Not answered; below is the last answer, if there was one.";
  $("banners").replaceChildren(...(failure ? [el("p", { class: "banner bad" }, failure)] : []));
}

async function answered(changes) {
  const body = JSON.stringify(changes);
  for (let tries = 1; ; tries++) {
    try {
      const wanted = view.shown > PAGE ? `what-if?limit=${Math.min(view.shown, MOST)}` : "what-if";
      return await api(wanted, { method: "POST", headers: { "content-type": "application/json" }, body });
    } catch (error) {
      if (error.status !== 429 || another || tries === MOST_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }
}

// Without changes there is one course to simulate. By what the server's last answers took, and its limit.
async function expected(courses) {
  const { jobs, start_seconds: start, course_seconds: course, most_seconds: most } = await api("what-if/expected");
  return `About ${duration(start + courses * course)} for ${plural(jobs, "job")}, ${duration(start + courses * most)} at most`;
}

function draw(told) {
  view.told = told;
  keepingFocus($("rows"), () => $("rows").replaceChildren(...told.jobs.map((job) => row(job, told))));
  $("none").hidden = told.total > 0;
  $("summary").textContent = summary(told);
  $("notes").replaceChildren(...told.notes.map((note) => el("li", {}, note)));
  drawMore();
}

function drawMore() {
  const known = $("rows").children.length, { total } = view.told;
  $("more").hidden = known >= total;
  $("more").textContent = `${count(Math.min(PAGE, total - known))} more of ${count(total)}`;
}

// The next page of the same answer, which the server keeps for some minutes.
async function more() {
  const told = view.told, offset = $("rows").children.length;
  try {
    const next = await api(`what-if/answers/${told.answer_id}?offset=${offset}&limit=${PAGE}`);
    if (view.told !== told || $("rows").children.length !== offset) return; // another answer came meanwhile, or this page
    $("rows").append(...next.jobs.map((job) => row(job, told)));
    view.shown = $("rows").children.length;
    drawMore();
  } catch (error) {
    $("banners").replaceChildren(el("p", { class: "banner bad" }, error.message));
  }
}

function summary(told) {
  const { means } = told;
  const policies = told.policy === told.changed_policy ? `under ${told.policy}` : `under ${told.policy}, then under ${told.changed_policy}`;
  const mean = means === null ? "" : `: done after ${duration(means.as_it_is)} in the mean as it is, ${duration(means.changed)} then`;
  return `Simulated at ${clock(told.at)} ${policies}, ${plural(told.total, "job")}${mean}.${told.complete ? "" : " There was too much to simulate: some ends are not known."}`;
}

function row(job, told) {
  const inputs = LIMITS.map((name) => {
    const input = el("input", { type: "number", name, "data-job": job.job_id, "aria-label": `${WORDS[name]} of ${job.job_id}`, placeholder: "as is", min: name === "priority" ? null : 1 });
    input.value = limits.get(job.job_id)?.[name] ?? "";
    return el("td", {}, input);
  });
  const when = (at) => el("td", { class: "number", title: at === null ? null : new Date(at * 1000).toLocaleString() }, instant(at, told));
  const before = job.as_it_is, after = job.changed;
  return el("tr", { "data-id": job.job_id }, el("td", { title: job.job_id }, job.job_id), ...inputs,
    when(before.starts_at), when(before.ends_at), when(after.starts_at), when(after.ends_at), sooner(before.ends_at, after.ends_at));
}

function instant(at, told) {
  if (at === null) return told.complete ? "never" : "not known";
  return at - told.at < 1 ? "now" : `in ${duration(at - told.at)}`;
}

function sooner(before, after) {
  if (before === null || after === null) return el("td", { class: "number" });
  if (Math.abs(before - after) < 1) return el("td", { class: "number" }, "=");
  const later = after > before;
  return el("td", { class: `number ${later ? "later" : "sooner"}` }, `${later ? "-" : ""}${duration(Math.abs(before - after))}`);
}

// Names to choose from. That there are none to offer keeps nobody from asking.
async function offer() {
  const nodes = (await api("nodes").catch(() => [])).filter((node) => node.present);
  $("types").replaceChildren(...[...new Set(nodes.map((node) => node.type))].sort().map((value) => el("option", { value })));
  $("nodes").replaceChildren(...nodes.map((node) => el("option", { value: node.name })));
}

followTheme();
link($("cluster"), `${base}/plugin/elastic`);
link($("jobs"), `${base}/plugin/elastic-jobs`);
link($("decisions"), `${base}/plugin/elastic-decisions`);
link($("models"), `${base}/plugin/elastic-models`);
$("question").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!asking) ask();
});
$("question").addEventListener("reset", () => {
  limits.clear();
  for (const input of $("rows").querySelectorAll("input")) input.value = "";
  setTimeout(ask); // once the form is empty
});
$("rows").addEventListener("input", ({ target }) => {
  const { [target.name]: _, ...others } = limits.get(target.dataset.job) ?? {};
  limits.set(target.dataset.job, target.value === "" ? others : { ...others, [target.name]: Number(target.value) });
});
$("more").addEventListener("click", more);
$("rows").addEventListener("keydown", (event) => event.key === "Enter" && ask());
offer();
ask();
