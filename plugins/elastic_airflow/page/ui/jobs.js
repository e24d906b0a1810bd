// One card a job: what it has, how far it is, why, and where to look next.

import { count, duration, el, measure, plural, soonOrDate, starting } from "./format.js";
import { hindsight, timeLeft, workLeft } from "./forecasts.js";
import { ASKED } from "./attention.js";
import { chooser } from "./choosing.js";
import { logOf } from "./log.js";
import { asked, base, jobPage, link } from "./shell.js";

const MOST_ASIDE = 3; // nodes of which the summary says why
const MINOR = new Set(["Code", "Exchange", "Layout", "Placement", "Reads", "Resizes", "Segment", "Stages", "State came"]); // not shown in a crowd

// `cards` as `cardsOf` has them.
export function drawJobs(root, cards, now, colour) {
  root.classList.toggle("crowd", cards.crowded);
  if (cards.crowded) {
    root.replaceChildren(crowdLine(cards.count), ...cards.groups.map((group) => groupOf(group, now, colour)));
    return;
  }
  if (!cards.active.length) {
    const form = link(el("a"), `${base}/dags/elastic_job`);
    form.append("elastic_job");
    root.replaceChildren(el("p", { class: "card empty" }, "No job is active. Trigger ", form, " to start one."));
    return;
  }
  root.replaceChildren(...cards.active.map((job) => card(job, now, colour)));
}

function crowdLine(jobs) {
  const table = link(el("a"), `${base}/plugin/elastic-jobs`);
  table.append(`All ${count(jobs)} active jobs`);
  return el("p", { class: "card all" }, table, ", and those that ended, are in the table of jobs. Here are those that may need a look.");
}

function groupOf([title, jobs, total], now, colour) {
  const more = total > jobs.length ? `${title}: ${jobs.length} of ${count(total)}` : title;
  return el("div", { class: title === ASKED ? "group asked" : "group", role: "group", "aria-label": title }, el("h3", {}, more), ...jobs.map((job) => card(job, now, colour)));
}

export function drawEnded(root, jobs, now, colour) {
  root.replaceChildren(...jobs.map((job) => card(job, now, colour)));
}

// Of a job that waits; among others the policy's reason is behind it, since it says much the same.
function waiting(job, now, alone) {
  const place = `Number ${count(job.queued.place)} of ${count(job.queued.length)} in the queue`;
  const title = [alone ? "" : job.reason, job.queued.assumes].filter(Boolean).join("; ");
  return el("p", { class: "reason queued", title }, `${place}: ${job.queued.words}; ${starting(job.queued, now)}`);
}

// `alone`: on the page of this job, where its name is the page's, and a log that tells why it failed is open.
export function card(job, now, colour, alone = false) {
  const article = el("article", { class: `card job ${job.state}`, id: `job-${job.job_id}` });
  const dot = el("span", { class: "dot", "aria-hidden": "true" });
  dot.style.background = colour(job.job_id);
  const name = alone ? null : link(el("a", { class: "name" }, job.name), jobPage(job.job_id));
  const title = el("h3", {}, ...(job.state === "active" && !alone ? [chooser(job)] : []), dot, name, el("span", { class: "id" }, job.job_id));
  const log = logOf(job, asked("log") === job.job_id || (alone && job.state === "failed"));
  article.append(el("div", { class: "top" }, title, chip(job, now), links(job, log.button)), bar(job, colour), facts(job, now));
  if (job.error) article.append(el("p", { class: "error" }, job.error));
  if (job.queued) article.append(waiting(job, now, alone));
  if (job.reason && (alone || !job.queued)) article.append(el("p", { class: "reason" }, job.reason));
  const turnedOut = hindsight(job);
  if (turnedOut) article.append(turnedOut);
  for (const note of job.notes) article.append(el("p", { class: "note" }, note));
  for (const action of job.actions) article.append(el("p", { class: action.done ? "action" : "action refused" }, actionWords(action, now)));
  if (log.panel) article.append(log.panel);
  return article;
}

function actionWords(action, now) {
  const why = action.detail ? `${action.done ? "," : ", refused:"} ${action.detail}` : "";
  return `${duration(now - action.at)} ago ${action.actor}: ${action.action} (${action.way})${why}`;
}

function chip(job, now) {
  const since = job.waiting_since ? ` ${duration(now - job.waiting_since)}` : "";
  const words = {
    created: ["waiting", job.segment_index ? "between segments" : "submitted"],
    waiting: ["waiting", `waiting${since}`],
    granted: ["starting", "starting"],
    running: ["running", "training"],
  };
  const [kind, text] = job.state === "active" ? (words[job.segment_state] ?? ["waiting", job.segment_state]) : [job.state, job.state];
  return el("span", { class: `chip ${kind}` }, text);
}

function links(job, log) {
  const places = el("nav", { class: "links", "aria-label": `Links of ${job.name}` }, log);
  const add = (text, href, outside) => {
    const anchor = link(el("a"), href, outside);
    anchor.append(text);
    places.append(anchor);
  };
  if (job.run) add("Run", `${base}/dags/${encodeURIComponent(job.run[0])}/runs/${encodeURIComponent(job.run[1])}`);
  add("Segment", `${base}/dags/elastic_segment/runs/${encodeURIComponent(job.segment_id)}`);
  if (job.tracker_url) add("MLflow", job.tracker_url, true);
  return places;
}

function bar(job, colour) {
  const percent = 100 * job.progress;
  const inner = el("span");
  inner.style.width = `${percent}%`;
  inner.style.background = colour(job.job_id);
  const shown = job.progress > 0 && job.progress < 1 ? percent.toFixed(percent < 10 ? 1 : 0) : Math.round(percent);
  return el("div", { class: "progress" },
    el("div", { class: "track", role: "progressbar", "aria-label": `Progress of ${job.job_id}`, "aria-valuenow": Math.round(percent), "aria-valuemin": 0, "aria-valuemax": 100 }, inner),
    el("span", { class: "percent" }, `${shown} %`));
}

function facts(job, now) {
  const list = el("dl", { class: "facts" });
  const add = (name, value, kind) => value !== null && value !== "" && list.append(el("div", { class: kind || (MINOR.has(name) ? "minor" : null) }, el("dt", {}, name), el("dd", {}, value)));
  const active = job.state === "active";
  const range = job.min_slots === job.max_slots ? `${job.max_slots}` : `${job.min_slots} to ${job.max_slots}`;
  if (active) {
    add("Slots", job.slots ? `${job.types} (may use ${range})` : `none (may use ${range})`);
    add("Global batch", job.global_batch === null ? null : count(job.global_batch));
    add("Layout", job.layout);
    add("Stages", job.stages);
    add("Placement", job.placement);
    add("Exchange", job.comm === "allreduce" ? "" : job.comm);
    add("Time left", timeLeft(job));
    add("Work left", workLeft(job));
  } else {
    add("Took", duration((job.finished_at ?? now) - job.submitted_at));
  }
  add("Step", count(job.step));
  add("Samples", `${count(job.done_samples)} of ${count(job.total_samples)}${job.reading ? " of progress" : ""}`);
  add("Reads", job.reading);
  add("Segment", `${job.segment_index + 1}${job.lineage ? `, lineage ${job.lineage}` : ""}`);
  add("Code", job.code);
  add("Resizes", count(job.num_resizes));
  add("State came", job.restored);
  add("Spent", job.cost, job.budget && job.spent > job.budget ? "late" : "");
  if (job.queue !== "default") add("Queue", job.queue);
  add("Submitted by", job.submitted_by ?? "");
  if (job.priority) add("Priority", String(job.priority));
  if (job.deadline) add("Deadline", deadline(job, now), job.late ? "late" : "");
  for (const why of job.at_risk) add("At risk", why, "late");
  for (const [name, value] of Object.entries(job.evaluation)) add(heldOut(name), measure(value));
  add("Model", job.model ?? "");
  return list;
}

function heldOut(name) {
  const words = name.replaceAll("_", " ");
  return words.startsWith("held out") ? `Held-out${words.slice(8)}` : `Held-out ${words}`;
}

function deadline(job, now) {
  const left = job.deadline - now;
  const when = left > 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
  return job.late ? `${when}, will be missed` : when;
}

export function summary(data) {
  const total = data.nodes.filter((node) => node.present && !node.set_aside).reduce((sum, node) => sum + node.num_slots, 0);
  const active = data.jobs.filter((job) => job.state === "active");
  const held = active.reduce((sum, job) => sum + job.slots, 0);
  const training = active.filter((job) => job.slots).length;
  const pairs = [
    ["Slots in use", `${held} of ${total}`],
    ["Jobs", `${training} training, ${active.length - training} waiting`],
  ];
  const aside = data.nodes.filter((one) => one.set_aside);
  for (const node of aside.slice(0, MOST_ASIDE)) {
    const goes = node.leaves_at && node.present ? `; it goes at ${soonOrDate(node.leaves_at, data.now)}` : "";
    pairs.push([`${node.name} is set aside`, node.set_aside + goes]);
  }
  if (aside.length > MOST_ASIDE) pairs.push(["More are set aside", plural(aside.length - MOST_ASIDE, "node")]);
  if (data.decision) {
    const ago = data.decision.decided_at ? `, ${duration(data.now - data.decision.decided_at)} ago` : "";
    pairs.push([data.decision.policy ? `Last decision (${data.decision.policy})` : "Last decision", `${data.decision.trigger}${ago}`]);
  }
  return pairs.map(([name, value]) => el("div", { title: `${name}: ${value}` }, el("dt", {}, name), el("dd", {}, value)));
}

export function pausedBanner(dags) {
  return `${plural(dags.length, "DAG")} paused (${dags.join(", ")}): what runs goes on with the slots it holds, nothing new starts.`;
}

export function unreconciledBanner(seconds) {
  return `No run of elastic_reconcile has ended well for ${duration(seconds)}: what runs goes on, but slots of what was lost stay held, jobs that lost their run get none, and nothing is swept. The log of its last run says why.`;
}
