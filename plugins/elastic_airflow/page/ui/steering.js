// What is done to the chosen jobs: the REST API's own routes, one request a job, and what became of each.

import { el, plural } from "./format.js";

const AT_ONCE = 4;
const reason = { reason: "on the page" };
// `sure`: what is asked first.
const ACTIONS = [
  { name: "Pause", done: "paused", ask: (id) => ["POST", `${id}/pause`, reason] },
  { name: "Resume", done: "resumed", ask: (id) => ["POST", `${id}/resume`, {}] },
  { name: "Checkpoint now", done: "asked for a checkpoint", ask: (id) => ["POST", `${id}/checkpoint`, reason] },
  { name: "Stop", done: "will stop with their next commit", ask: (id) => ["POST", `${id}/stop`, reason], sure: (jobs) => `End ${jobs} with the next commit?` },
  { name: "Cancel", done: "cancelled", ask: (id) => ["POST", `${id}/cancel`, reason], sure: (jobs) => `Cancel ${jobs}, without a last commit?`, danger: true },
];

export class Steering {
  // `redraw`: the rows, as they are known; `refresh`: asks for them anew.
  constructor(root, redraw, refresh) {
    Object.assign(this, { root, redraw, refresh, chosen: new Set(), priority: "", said: "" });
    this.draw();
  }

  // Only what is shown can be chosen: jobs that are filtered away are chosen no longer.
  shown(ids) {
    const before = this.chosen.size;
    for (const id of this.chosen) if (!ids.includes(id)) this.chosen.delete(id);
    if (before !== this.chosen.size && !this.busy) this.draw(this.said);
  }

  choose(ids, yes) {
    for (const id of ids) yes ? this.chosen.add(id) : this.chosen.delete(id);
    if (!this.busy) this.draw();
  }

  draw(said = "") {
    Object.assign(this, { busy: false, said });
    const buttons = ACTIONS.map((action) => this.button(action.name, () => this.begin(action), action.danger));
    const priority = el("input", { type: "number", step: "1", "aria-label": "Priority", value: this.priority });
    const set = this.button("Set priority", () => this.setPriority(priority));
    priority.disabled = !this.chosen.size;
    priority.addEventListener("input", () => { this.priority = priority.value; });
    priority.addEventListener("keydown", (event) => event.key === "Enter" && this.setPriority(priority));
    this.root.replaceChildren(el("span", {}, `${plural(this.chosen.size, "job")} chosen`), ...buttons, priority, set, el("span", { role: "status" }, said));
  }

  button(name, act, danger = false) {
    const button = el("button", { type: "button", class: danger ? "danger" : null }, name);
    button.disabled = !this.chosen.size;
    button.addEventListener("click", act);
    return button;
  }

  setPriority(input) {
    const priority = Number(input.value);
    if (input.value.trim() === "" || !Number.isInteger(priority)) return this.draw("A priority is a whole number.");
    return this.begin({ name: "Set priority", done: `have priority ${priority}`, ask: (id) => ["PATCH", id, { priority }] });
  }

  // In the page itself: Airflow's frame allows no dialogs.
  begin(action) {
    const ids = [...this.chosen];
    if (!action.sure) return this.carryOut(action, ids);
    this.busy = true;
    const yes = el("button", { type: "button", class: "danger" }, `Yes, ${action.name.toLowerCase()}`);
    const no = el("button", { type: "button" }, "No");
    yes.addEventListener("click", () => this.carryOut(action, ids));
    no.addEventListener("click", () => this.draw());
    this.root.replaceChildren(el("span", { role: "status" }, action.sure(plural(ids.length, "job"))), yes, no);
    no.focus();
    return null;
  }

  async carryOut(action, ids) {
    this.busy = true;
    this.root.replaceChildren(el("span", { role: "status" }, `${action.name}: ${plural(ids.length, "job")} …`));
    const refused = [], waiting = [...ids];
    const worker = async () => {
      while (waiting.length) {
        const id = waiting.shift();
        const problem = await ask(...action.ask(encodeURIComponent(id)));
        if (problem) refused.push(`${id}: ${problem}`);
        else this.chosen.delete(id);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    const done = ids.length - refused.length;
    const words = done ? [`${plural(done, "job")} ${action.done}.`] : [];
    if (refused.length) words.push(`${refused.length} not: ${refused[0]}${refused.length > 1 ? " …" : ""}`);
    this.redraw();
    this.draw(words.join(" "));
    this.refresh();
  }
}

// Why not, or null.
async function ask(method, path, body) {
  try {
    const answer = await fetch(`../api/v1/jobs/${path}`, {
      method, credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    if (answer.ok) return null;
    const told = await answer.json().catch(() => ({}));
    if (answer.status === 403 && !told.message) return "it takes Airflow's right to start runs of elastic_job";
    return told.message ?? `the control API answered ${answer.status}`;
  } catch (error) {
    return error.message;
  }
}
