// Tables of one job: wide ones scroll by themselves, and of many rows the newest are shown first.

import { count, el } from "../format.js";

export const SHOWN = 20;

export function scrolling(name, table) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table);
}

// Shows all `known` rows, or no longer; nothing where they are no more than `SHOWN`. `total`: with those that no page was
// asked for, since the answer holds only the newest.
export function moreButton(known, total, all, turn) {
  if (known <= SHOWN) return "";
  const most = known < total ? `The newest ${count(known)} of ${count(total)}` : `All ${count(known)}`;
  const button = el("button", { type: "button", class: "more" }, all ? `The newest ${SHOWN} only` : most);
  button.addEventListener("click", turn);
  return button;
}
