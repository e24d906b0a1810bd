// A job's checkpoints, the newest first, and what can be begun from each.

import { layout } from "../allocations.js";
import { count, el, measure, size } from "../format.js";
import { api } from "../shell.js";
import { isKept } from "./course.js";
import { moreButton, scrolling, SHOWN } from "./tables.js";

const RIGHT = new Set([0, 1, 3, 8]); // columns that end at the right
// What a checkpoint is good for: a button each. `sure`: what is asked first; `done`: what is said of the answer; `tell`:
// what it shows, of one that asks the server nothing.
const ACTIONS = [
  {
    name: "Roll back", sure: (one) => `Go on from step ${count(one.step)} again, and leave what came after it?`,
    path: (one) => `jobs/${encodeURIComponent(one.job_id)}/rollback`, body: (one) => ({ checkpoint_id: one.checkpoint_id }),
    usable: (one) => !one.bad, done: (one) => `It goes on from step ${count(one.step)}.`,
  },
  {
    name: "Fork", sure: (one) => `Start another job that goes on from step ${count(one.step)}, with all of its state?`,
    path: (one) => `checkpoints/${one.checkpoint_id}/fork`, body: () => ({}),
    usable: (one) => !one.bad, done: (one, answer) => `Job ${answer.job_id} goes on from step ${count(one.step)}.`,
  },
  { name: "Export", usable: (one) => !one.bad, tell: exported },
];

// It reads all of the state, and a model is made by the job's own code: neither is the API server's to do.
function exported(one, { registered_as: model }) {
  const ways = [["its weights, as one file", "--out", `${one.job_id}-step-${one.step}.safetensors`], ["a model, as a version in MLflow's registry", "--mlflow-model", `models:/${model}`]];
  return [
    el("div", {}, `Step ${count(one.step)}, on a command line that reaches the store:`),
    ...ways.map(([what, ...options]) => el("div", {}, `${what}: `, el("code", {}, ["elastic", "checkpoint", "export", one.uri, ...options].map(quoted).join(" ")))),
  ];
}

// One argument for a POSIX shell, as Python's shlex.quote.
function quoted(argument) {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", "'\\''")}'`;
}

export class Checkpoints {
  // `refresh`: asks for everything anew.
  constructor(root, refresh) {
    Object.assign(this, { root, refresh, gone: false, busy: false, all: false, said: "" });
  }

  // `checkpoints`: the newest first; `total`: how many there are in all; `page`: what else is known of the job.
  draw({ checkpoints, total }, page) {
    Object.assign(this, { checkpoints, total, page });
    if (!this.busy) this.drawn();
  }

  // `gone`: another job's stand in their place, so that an answer that comes late shows nothing.
  drawn() {
    if (this.gone) return;
    const shown = this.all ? this.checkpoints : this.checkpoints.slice(0, SHOWN);
    if (!shown.length) {
      this.root.replaceChildren(el("p", { class: "empty" }, "It has committed none yet, or none is kept any more."));
      return;
    }
    const heads = ["Step", "Samples", "Metrics", "Size", "Layout", "Committed", "By", "Marks", "What to do"];
    const rows = shown.map((one) => this.row(one));
    const head = heads.map((name, i) => el("th", { scope: "col", class: RIGHT.has(i) ? "number" : null }, name));
    const table = el("table", { "aria-label": "Checkpoints, newest first" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
    this.area = el("div", { class: "said" }, el("span", { role: "status" }, this.said));
    this.area.hidden = !this.said;
    const more = moreButton(this.checkpoints.length, this.total, this.all, () => {
      this.all = !this.all;
      this.drawn();
    });
    this.root.replaceChildren(this.area, scrolling("Checkpoints", table), more);
  }

  row(one) {
    const { metric, versions } = this.page;
    const named = Object.entries(one.metrics).sort(([a], [b]) => (b === metric) - (a === metric) || a.localeCompare(b));
    const metrics = named.slice(0, 3).map(([name, value]) => `${name} ${measure(Number(value))}`).join(", ") + (named.length > 3 ? " …" : "");
    const tags = [
      one.bad ? el("span", { class: "tag bad", title: "found corrupt on reading; never restored from again" }, "corrupt") : null,
      isKept(one, this.page) ? null : el("span", { class: "tag", title: "a rollback left it" }, "left"),
      ...(versions[one.uri] ?? []).map((version) => el("span", { class: "tag now", title: "registered" }, version)),
    ];
    const buttons = ACTIONS.map((action) => {
      const button = el("button", { type: "button", "aria-label": `${action.name}: step ${one.step}` }, action.name);
      button.disabled = !action.usable(one);
      button.addEventListener("click", () => (action.tell ? this.tell(action, one) : this.sure(action, one)));
      return button;
    });
    const cells = [
      count(one.step), count(one.samples), metrics || "-", size(one.size_bytes), layout(one.layout), new Date(one.committed_at * 1000).toLocaleString(),
      `segment ${Number(one.segment_id.split("_").at(-1)) + 1}${one.final ? ", its last" : ""}`, el("span", {}, ...tags), el("span", { class: "buttons" }, ...buttons),
    ];
    return el("tr", { "data-checkpoint": one.checkpoint_id }, ...cells.map((cell, i) => el("td", { class: RIGHT.has(i) ? "number" : null }, cell)));
  }

  // In the page itself: Airflow's frame allows no dialogs.
  sure(action, one) {
    this.busy = true;
    const yes = el("button", { type: "button", class: "danger" }, `Yes, ${action.name.toLowerCase()}`), no = el("button", { type: "button" }, "No");
    yes.addEventListener("click", () => this.carryOut(action, one));
    no.addEventListener("click", () => this.again(""));
    this.area.hidden = false;
    this.area.replaceChildren(el("span", { role: "status" }, action.sure(one)), yes, no);
    no.focus();
  }

  tell(action, one) {
    this.busy = true;
    const close = el("button", { type: "button" }, "Close");
    close.addEventListener("click", () => this.again(""));
    this.area.hidden = false;
    this.area.replaceChildren(el("div", { role: "status" }, ...action.tell(one, this.page)), close);
    close.focus();
  }

  async carryOut(action, one) {
    this.area.replaceChildren(el("span", { role: "status" }, `${action.name} …`));
    try {
      const answer = await api(action.path(one), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(action.body(one)) });
      this.again(action.done(one, answer));
    } catch (error) {
      this.again(`Not done: ${error.message}`);
    }
    this.refresh();
  }

  again(said) {
    Object.assign(this, { said, busy: false });
    this.drawn();
  }
}
