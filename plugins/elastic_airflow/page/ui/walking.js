// The blocks of the timeline by keyboard: one of them is a stop of the Tab key, and the arrow keys go along its row and to
// the rows beside it. Only that one has a name: those of all blocks take long to make, and nobody would read them.

let last = null; // the key of the block that was gone to last: where Tab stops, also when all is drawn anew

// `blocks`: `{ node, key, top, left, right, words }`, the last a function; `focused`: the key of what has the focus, if anything.
export function walk(chart, blocks, focused) {
  const rows = rowsOf(blocks), places = new Map(blocks.map((block) => [block.node, block]));
  let stop = null;
  const stopAt = (block) => {
    stop?.node.setAttribute("tabindex", "-1");
    stop = block;
    for (const [name, value] of [["tabindex", "0"], ["role", "img"], ["aria-label", block.words()]]) block.node.setAttribute(name, value);
  };
  const first = [focused, last].map((at) => blocks.find(({ key }) => key === at)).find(Boolean) ?? rows[0]?.at(-1);
  if (first) stopAt(first);
  chart.addEventListener("keydown", (event) => {
    const block = places.get(event.target), ways = block && waysFrom(rows, block);
    if (event.key === "Escape") block?.node.blur();
    if (!ways || !(event.key in ways)) return;
    event.preventDefault();
    const to = ways[event.key];
    if (!to || to === block) return;
    last = to.key;
    stopAt(to);
    to.node.focus();
  });
}

function rowsOf(blocks) {
  const rows = new Map();
  for (const block of blocks) rows.has(block.top) ? rows.get(block.top).push(block) : rows.set(block.top, [block]);
  return [...rows].sort(([a], [b]) => a - b).map(([, row]) => row.sort((a, b) => a.left - b.left));
}

function waysFrom(rows, block) {
  const number = rows.findIndex((row) => row.includes(block)), row = rows[number], at = row.indexOf(block);
  return {
    ArrowLeft: row[at - 1], ArrowRight: row[at + 1], Home: row[0], End: row.at(-1),
    ArrowUp: nearest(rows[number - 1], block), ArrowDown: nearest(rows[number + 1], block),
  };
}

// The one that was held at the same time the longest, or else the nearest to it.
function nearest(row, { left, right }) {
  const off = (block) => Math.max(block.left - right, left - block.right);
  return row?.reduce((best, block) => (off(block) <= off(best) ? block : best));
}
