// Tables of one job: wide ones scroll by themselves, and of many rows the newest are shown first.

import { count, el } from "../format.js";

export const SHOWN = 20;

export function scrolling(name, table) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table);
}

// Shows all rows, or no longer; nothing where there are no more than `SHOWN`.
export function moreButton(number, all, turn) {
  if (number <= SHOWN) return "";
  const button = el("button", { type: "button", class: "more" }, all ? `The newest ${SHOWN} only` : `All ${count(number)}`);
  button.addEventListener("click", turn);
  return button;
}
