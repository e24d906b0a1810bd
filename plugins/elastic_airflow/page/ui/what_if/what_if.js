// How the active jobs would fare with other nodes, another policy, other limits: asked of the server, which simulates both.

import { clock, duration, el, plural } from "../format.js";
import { keepingFocus } from "../redrawing.js";
import { api, base, followTheme, link } from "../shell.js";
import { remember, tookLast, waiting } from "../waiting.js";

const $ = (id) => document.getElementById(id);
const LIMITS = ["priority", "min_slots", "max_slots"];
const WORDS = { priority: "Priority", min_slots: "Min slots", max_slots: "Max slots" };
const MOST_SECONDS = 10; // that the server simulates, of each of the two courses
const AGAIN = 1000, MOST_TRIES = 60; // while the server still simulates what was asked before, here or elsewhere
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
  const jobs = {};
  for (const input of $("rows").querySelectorAll("input")) {
    if (input.value !== "") (jobs[input.dataset.job] ??= {})[input.name] = number(input);
  }
  if (Object.keys(jobs).length) wanted.jobs = jobs;
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
    remember("what-if", told.took_seconds / courses);
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
      return await api("what-if", { method: "POST", headers: { "content-type": "application/json" }, body });
    } catch (error) {
      if (error.status !== 429 || another || tries === MOST_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }
}

// Without changes there is one course to simulate.
function expected(courses) {
  const last = tookLast("what-if");
  if (last === null) return `It may take up to ${courses * MOST_SECONDS} s`;
  return `About ${duration(last * courses)}, as the last time`;
}

function draw(told) {
  const values = Object.fromEntries([...$("rows").querySelectorAll("input")].map((input) => [`${input.dataset.job} ${input.name}`, input.value]));
  $("policy").placeholder = told.policy;
  keepingFocus($("rows"), () => $("rows").replaceChildren(...told.jobs.map((job) => row(job, told, values))));
  $("none").hidden = told.jobs.length > 0;
  $("summary").textContent = summary(told);
  $("notes").replaceChildren(...told.notes.map((note) => el("li", {}, note)));
}

function summary(told) {
  const both = told.jobs.filter((job) => job.as_it_is.ends_at !== null && job.changed.ends_at !== null);
  const mean = (which) => both.reduce((sum, job) => sum + job[which].ends_at - told.at, 0) / both.length;
  const policies = told.policy === told.changed_policy ? `under ${told.policy}` : `under ${told.policy}, then under ${told.changed_policy}`;
  const means = both.length ? `: done after ${duration(mean("as_it_is"))} in the mean as it is, ${duration(mean("changed"))} then` : "";
  return `Simulated at ${clock(told.at)} ${policies}, ${plural(told.jobs.length, "job")}${means}.${told.complete ? "" : " There was too much to simulate: some ends are not known."}`;
}

function row(job, told, values) {
  const inputs = LIMITS.map((name) => {
    const input = el("input", { type: "number", name, "data-job": job.job_id, "aria-label": `${WORDS[name]} of ${job.job_id}`, placeholder: "as is", min: name === "priority" ? null : 1 });
    input.value = values[`${job.job_id} ${name}`] ?? "";
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
  for (const input of $("rows").querySelectorAll("input")) input.value = "";
  setTimeout(ask); // once the form is empty
});
$("rows").addEventListener("keydown", (event) => event.key === "Enter" && ask());
offer();
ask();
