// With many active jobs a card for each is a page that nobody reads: then only those that need a look have one.

import { asked } from "./shell.js";

const CROWD = 20; // active jobs; with more, the table of jobs has them all
const MOST = 3; // cards of a kind
export const ASKED = "Asked for"; // by the page's address

// {crowded, active, ended: jobs that get a card as ever; groups: [title, jobs, how many there are] in a crowd}.
export function cardsOf(jobs) {
  const active = jobs.filter((job) => job.state === "active"), ended = jobs.filter((job) => job.state !== "active");
  if (active.length <= CROWD) return { crowded: false, count: active.length, active, ended, groups: [] };
  const taken = new Set(), first = (found) => {
    const shown = found.filter((job) => !taken.has(job.job_id)).slice(0, MOST);
    shown.forEach((job) => taken.add(job.job_id));
    return shown;
  };
  const wanted = jobs.filter((job) => job.job_id === asked("job") || job.job_id === asked("log"));
  const failed = ended.filter((job) => job.state === "failed");
  const late = active.filter((job) => job.late).sort((a, b) => a.deadline - b.deadline);
  const waiting = active.filter((job) => job.waiting_since !== null).sort((a, b) => a.waiting_since - b.waiting_since);
  const kinds = [[ASKED, wanted], ["Failed lately", failed], ["Late", late], ["Waiting longest", waiting]];
  const groups = kinds.map(([title, found]) => [title, first(found), found.length]).filter(([, shown]) => shown.length);
  const shown = groups.flatMap(([, cards]) => cards);
  return { crowded: true, count: active.length, active: shown.filter((job) => job.state === "active"), ended: [], groups };
}
