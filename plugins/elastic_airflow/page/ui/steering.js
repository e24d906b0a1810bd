// What is done to the chosen jobs: the REST API's own routes, one request a job, and what became of each.

import { el, notCancelled, plural } from "./format.js";
import { base } from "./shell.js";

const AT_ONCE = 4;
const reason = { reason: "on the page" };
// `sure`: what is asked first. `not`: why it is not done though the answer, a job, is no error; or null.
const ACTIONS = [
  { name: "Pause", done: "paused", ask: (id) => ["POST", `${id}/pause`, reason] },
  { name: "Resume", done: "resumed", ask: (id) => ["POST", `${id}/resume`, {}] },
  { name: "Checkpoint now", done: "asked for a checkpoint", ask: (id) => ["POST", `${id}/checkpoint`, reason] },
  { name: "Stop", done: "will stop with their next commit", ask: (id) => ["POST", `${id}/stop`, reason], sure: (jobs) => `End ${jobs} with the next commit?` },
  { name: "Cancel", done: "cancelled", ask: (id) => ["POST", `${id}/cancel`, reason], sure: (jobs) => `Cancel ${jobs}, without a last commit?`, not: (job) => notCancelled(job.state), danger: true },
];

const REVIVE = { name: "Revive", done: "revived", ask: (id) => ["POST", `${id}/revive`, {}] };

// What may be set, in place of the spec's: the field of a request, and what is said of a job that has it.
const FIELDS = {
  priority: { label: "Priority", said: (value) => `priority ${value}` },
  min_slots: { label: "Fewest slots", min: 1, said: (value) => `at least ${plural(value, "slot")}` },
  max_slots: { label: "Most slots", min: 1, said: (value) => `at most ${plural(value, "slot")}` },
};

export class Steering {
  // `redraw`: the rows, as they are known; `refresh`: asks for them anew.
  // `only`: the one job that there is to choose, which stays chosen.
  constructor(root, redraw, refresh, only = null) {
    Object.assign(this, { root, redraw, refresh, only, gone: false, over: false, chosen: new Set(only === null ? [] : [only]), values: {}, said: "" });
    this.draw();
  }

  // Whether that one has ended without being done: it can be revived, and nothing else.
  ended(over) {
    if (over === this.over) return;
    this.over = over;
    if (!this.busy) this.draw(this.said);
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

  // `gone`: another job's stands in its place, so that an answer that comes late shows nothing.
  draw(said = "") {
    if (this.gone) return;
    Object.assign(this, { busy: false, said });
    const buttons = (this.over ? [REVIVE] : ACTIONS).map((action) => this.button(action.name, () => this.begin(action), action.danger));
    const inputs = Object.entries(FIELDS).map(([field, { label, min }]) => this.input(field, label, min));
    const setting = this.over ? [] : [...inputs, this.button("Set", () => this.set())];
    const number = this.only === null ? el("span", {}, `${plural(this.chosen.size, "job")} chosen`) : "";
    this.root.replaceChildren(...[number, ...buttons, ...setting, el("span", { role: "status" }, said)].filter(Boolean));
  }

  input(field, label, min) {
    const input = el("input", { type: "number", step: "1", min: min ?? null, placeholder: label, "aria-label": label, value: this.values[field] ?? "" });
    input.disabled = !this.chosen.size;
    input.addEventListener("input", () => { this.values[field] = input.validity.badInput ? NaN : input.value; });
    input.addEventListener("keydown", (event) => event.key === "Enter" && this.set());
    return input;
  }

  button(name, act, danger = false) {
    const button = el("button", { type: "button", class: danger ? "danger" : null }, name);
    button.disabled = !this.chosen.size;
    button.addEventListener("click", act);
    return button;
  }

  // Only what is filled in; the server says what a job cannot have.
  set() {
    const changes = {}, words = [];
    for (const [field, { label, min, said }] of Object.entries(FIELDS)) {
      const text = this.values[field] ?? "", value = Number(text);
      if (text === "") continue;
      if (!Number.isInteger(value) || value < (min ?? -Infinity)) return this.draw(`${label} is a whole number${min ? `, at least ${min}` : ""}.`);
      changes[field] = value;
      words.push(said(value));
    }
    if (!words.length) return this.draw(`Fill in ${Object.values(FIELDS).map(({ label }) => label.toLowerCase()).join(", ")}, or some of them.`);
    this.values = {};
    return this.begin({ name: "Set", done: `set: ${words.join(", ")}`, ask: (id) => ["PATCH", id, changes] });
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
    this.root.replaceChildren(el("span", { role: "status" }, action.sure(this.only === null ? plural(ids.length, "job") : "this job")), yes, no);
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
        const problem = await ask(action.not, ...action.ask(encodeURIComponent(id)));
        if (problem) refused.push(`${id}: ${problem}`);
        else if (this.only === null) this.chosen.delete(id);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    const done = ids.length - refused.length;
    const words = done ? [`${plural(done, "job")} ${action.done}.`] : [];
    if (refused.length && this.only !== null) words.push(`Not done: ${refused[0]}`);
    else if (refused.length) words.push(`${refused.length} not: ${refused[0]}${refused.length > 1 ? " …" : ""}`);
    this.redraw();
    this.draw(words.join(" "));
    this.refresh();
  }
}

// Why not, or null.
async function ask(not, method, path, body) {
  try {
    const answer = await fetch(`${base}/elastic/api/v1/jobs/${path}`, {
      method, credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    if (answer.ok) return not ? not(await answer.json()) : null;
    const told = await answer.json().catch(() => ({}));
    if (answer.status === 403 && !told.message) return "it takes Airflow's right to start runs of elastic_job";
    return told.message ?? `the control API answered ${answer.status}`;
  } catch (error) {
    return error.message;
  }
}
