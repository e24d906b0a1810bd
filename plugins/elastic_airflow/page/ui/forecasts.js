// What is expected of a job, how that turned out, and how this installation's forecasts turn out in general.

import { count, duration, el } from "./format.js";

const NAMES = {
  work: "Work left", finish: "Time to the end", "finish from queue": "Time to the end, from the queue",
};
const percent = (part) => `${Math.round(100 * part)} %`;
const when = (stage) => (stage ? `at ${percent(stage)}` : "at submission");

export function timeLeft(job) {
  const waits = !job.slots, told = waits === Boolean(job.forecast?.from_queue) && (!waits || job.queued);
  const finish = told ? job.forecast?.finish_in : null, left = waits ? finish?.[1] : job.seconds_left;
  if (waits ? !(left > 0) : left === null) return waits ? "after it starts" : "not known yet";
  if (!finish || finish[2] <= 0) return `about ${duration(left)}`;
  const range = `about ${duration(left)} (${duration(Math.max(finish[0], 0))} to ${duration(finish[2])})`;
  return el("span", {}, range, el("small", {}, job.forecast.assumes));
}

export function workLeft(job) {
  if (!job.forecast || job.forecast.declared) return "";
  const [low, median, high] = job.forecast.work_left.map((work) => count(Math.round(work)));
  return `about ${median} samples (${low} to ${high}), ${job.forecast.work_basis}`;
}

export function hindsight(job) {
  if (!job.hindsight.length) return null;
  const line = el("ul", { class: "hindsight", "aria-label": `How the forecasts of ${job.name} turned out` });
  const byQuantity = [...job.hindsight].sort((a, b) => a.quantity.localeCompare(b.quantity) || a.stage - b.stage);
  for (const grade of byQuantity) {
    const error = grade.error === null ? "" : `${percent(Math.abs(grade.error))} too ${grade.error > 0 ? "high" : "low"}`;
    const held = grade.held === null ? "" : grade.held ? "in its interval" : "not in its interval";
    line.append(el("li", { class: grade.held === false ? "missed" : "" },
      el("b", {}, `${NAMES[grade.quantity]} ${when(grade.stage)}`), ` ${[error, held].filter(Boolean).join(", ")}`));
  }
  return line;
}

export function drawReport(root, report) {
  const head = ["Forecast", "Made", "Forecasts", "Median error", "In their 80 % interval"];
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))));
  const body = el("tbody");
  for (const row of report.stages.filter((stage) => stage.number)) {
    const held = `${percent(row.coverage)} (${percent(row.coverage_low)} to ${percent(row.coverage_high)})`;
    const error = row.median_error === null ? "not known" : percent(row.median_error);
    body.append(el("tr", {}, ...[NAMES[row.quantity], when(row.stage), count(row.number), error, held].map((cell) => el("td", {}, cell))));
  }
  table.append(body);
  const declared = report.declared ? `; ${count(report.declared)} of them declared their work, which is no forecast` : "";
  root.replaceChildren(table, el("p", { class: "empty" },
    `Over the last ${count(report.jobs)} jobs that ended${declared}. In brackets: the 95 % interval of that share. Jobs that were stopped count only where they went beyond an interval.`));
}
