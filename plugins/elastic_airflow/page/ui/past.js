// The window that the timeline shows: the last minutes, or such a stretch of the past, which is asked for once.

import { clock, plural } from "./format.js";
import { problem } from "./shell.js";

const $ = (id) => document.getElementById(id);
let until = null, shown = null, failed = null; // `until`: Unix seconds; null: the window ends now

// `now`: of the ledger, Unix seconds; `draw`: what to do once another window can be shown.
export function steerWindow(now, draw) {
  const seconds = () => 60 * Number($("minutes").value);
  const go = async (end) => {
    until = end === null || end >= now() ? null : end;
    $("later").disabled = $("live").disabled = until === null;
    shown = failed = null;
    if (until !== null) await ask(until - seconds(), until);
    draw();
  };
  $("earlier").addEventListener("click", () => go((until ?? now()) - seconds() / 2));
  $("later").addEventListener("click", () => go(until + seconds() / 2));
  $("live").addEventListener("click", () => go(null));
  $("minutes").addEventListener("change", () => go(until));
}

async function ask(since, end) {
  try {
    const answer = await fetch(`../ui/timeline?since=${since}&until=${end}`, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(await problem(answer));
    const told = await answer.json();
    if (until === end) shown = told;
  } catch (error) {
    if (until === end) failed = error.message;
  }
}

// What the timeline is to draw, in the overview's form, with what to say above it.
export function windowOf(overview) {
  if (until === null) return { data: overview, said: "" };
  if (failed) return { data: overview, said: `The past cannot be shown: ${failed} Shown is the time until now.` };
  if (!shown) return { data: overview, said: "Asking for the past…" };
  const of = (at) => `${new Date(at * 1000).toLocaleDateString()} ${clock(at)}`;
  const left = shown.left_out ? `; ${plural(shown.left_out, "later lease")} left out: show a shorter window` : "";
  return {
    data: { ...overview, ...shown, now: shown.until, past: true },
    said: `${of(shown.since)} to ${of(shown.until)}${left}`,
  };
}
