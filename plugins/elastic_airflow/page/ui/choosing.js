// Active jobs that are ticked, and the one thing that is done to many at once: cancelling them.

import { el, notCancelled, plural } from "./format.js";
import { base } from "./shell.js";

const chosen = new Set();
let changed = () => {};

export function chooser(job) {
  const box = el("input", { type: "checkbox", "aria-label": `Choose ${job.name} ${job.job_id}` });
  box.checked = chosen.has(job.job_id);
  box.addEventListener("change", () => {
    box.checked ? chosen.add(job.job_id) : chosen.delete(job.job_id);
    changed();
  });
  return box;
}

// `refresh` asks for the jobs anew. Jobs that have ended meanwhile are chosen no longer.
export function drawChosen(root, jobs, refresh) {
  const active = jobs.filter((job) => job.state === "active").map((job) => job.job_id);
  for (const jobId of chosen) if (!active.includes(jobId)) chosen.delete(jobId);
  changed = () => drawChosen(root, jobs, refresh);
  root.hidden = !active.length;
  const all = el("button", { type: "button" }, chosen.size === active.length ? "Choose none" : "Choose all");
  all.addEventListener("click", () => {
    const none = chosen.size === active.length;
    active.forEach((jobId) => (none ? chosen.delete(jobId) : chosen.add(jobId)));
    refresh();
  });
  const cancel = el("button", { type: "button", class: "danger" }, `Cancel ${plural(chosen.size, "job")}`);
  cancel.disabled = !chosen.size;
  cancel.addEventListener("click", () => confirmed(root, jobs, refresh));
  root.replaceChildren(all, cancel);
}

// In the page itself: Airflow's frame allows no dialogs.
function confirmed(root, jobs, refresh) {
  const jobIds = [...chosen];
  changed = () => {};
  const yes = el("button", { type: "button", class: "danger" }, "Yes, cancel");
  const no = el("button", { type: "button" }, "No");
  const said = el("span", { role: "status" }, `Cancel ${plural(jobIds.length, "job")}, without a last commit?`);
  no.addEventListener("click", () => drawChosen(root, jobs, refresh));
  yes.addEventListener("click", async () => {
    yes.disabled = no.disabled = true;
    said.textContent = await cancelJobs(jobIds);
    chosen.clear();
    yes.remove();
    no.textContent = "Close";
    no.disabled = false;
    no.focus();
    refresh();
  });
  root.replaceChildren(said, yes, no);
  no.focus();
  root.dataset.open = "yes";
  no.addEventListener("click", () => delete root.dataset.open);
}

async function cancelJobs(jobIds) {
  const request = {
    method: "POST",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ job_ids: jobIds, reason: "on the page" }),
  };
  try {
    const answer = await fetch(`${base}/elastic/api/v1/jobs/cancel`, request);
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) return body.message ?? body.detail ?? `The control API answered ${answer.status}.`;
    const refused = body.map((outcome) => outcome.error ?? notCancelled(outcome.state)).filter(Boolean);
    const done = plural(body.length - refused.length, "job");
    return refused.length ? `${done} cancelled; ${refused.length} not: ${refused[0]}` : `${done} cancelled.`;
  } catch (error) {
    return error.message;
  }
}
