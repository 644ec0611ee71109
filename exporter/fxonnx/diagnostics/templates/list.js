// The list of modules, nodes and weights: search, keyboard, and curves to the producers and consumers of a node.
const list = document.getElementById("list"), search = document.getElementById("search");
const rows = all(".row", list), parts = all(".module", list), items = all("summary, .row", list);
let selected = null; // a node, weight or module, on which list, side panel and picture agree
let stop = items[0]; // the one item that Tab reaches
for (const item of items) item.tabIndex = item === stop ? 0 : -1;
for (const row of rows) row.setAttribute("role", "button");

const normalized = text => text.toLowerCase().replace(/\s*=\s*/g, "=").replace(/\s+/g, " ");
const searched = new Map(); // row to the text that the search sees, made at the first search
function textOf(row) {
  const entry = entries.get(row);
  const attributes = (entry.attributes ?? []).map(([name, value]) => `${name}=${value}`);
  const types = (entry.inputs ?? []).map(value => value?.type ?? "");
  return normalized([row.textContent, entry.name, ...attributes, ...types].join(" "));
}

let opened = null; // during a search: the modules that were open before
let matches = []; // of the search, in the order of the list: nodes, weights and modules
function filter() {
  const text = normalized(search.value.trim());
  if (text) opened ??= new Set(parts.filter(part => part.open));
  const found = new Set();
  for (const part of parts) {
    const isNamed = text !== "" && all("b, .class", part.firstElementChild).some(name => normalized(name.textContent).includes(text));
    part.classList.toggle("matched", isNamed);
    if (isNamed) found.add(part.firstElementChild);
  }
  for (const row of rows) {
    if (text && !searched.has(row)) searched.set(row, textOf(row));
    const isFound = text !== "" && searched.get(row).includes(text);
    row.classList.toggle("hidden", text !== "" && !isFound && !row.closest(".matched"));
    if (isFound) found.add(row);
  }
  for (const part of parts) {
    const isShown = !text || part.matches(".matched") || part.querySelector(".row:not(.hidden)") !== null;
    part.classList.toggle("hidden", !isShown);
    if (opened) part.open = text ? isShown : opened.has(part);
  }
  if (!text) opened = null;
  matches = items.filter(item => found.has(item)).map(item => entries.get(item));
  document.getElementById("found").textContent = text ? `${matches.length} found` : "";
  markPicture();
  if (!stop.checkVisibility()) setStop(items.find(item => item.checkVisibility()) ?? stop);
  drawCurves();
}

function setStop(item) {
  stop.tabIndex = -1;
  stop = item;
  stop.tabIndex = 0;
}

// The next visible item in a direction, or the same at the end of the list.
function next(item, step) {
  for (let index = items.indexOf(item) + step; items[index]; index += step) if (items[index].checkVisibility()) return items[index];
  return item;
}

// The item that a key moves to; null for keys that do not move.
function destination(item, key) {
  const part = item.parentElement, isSummary = item.matches("summary");
  switch (key) {
    case "ArrowDown": return next(item, 1);
    case "ArrowUp": return next(item, -1);
    case "Home": return items.find(one => one.checkVisibility());
    case "End": return items.findLast(one => one.checkVisibility());
    case "ArrowRight":
      if (!isSummary || part.open) return next(item, 1);
      part.open = true;
      return item;
    case "ArrowLeft":
      if (!isSummary) return part.firstElementChild;
      if (!part.open) return part.parentElement.closest(".module")?.firstElementChild ?? item;
      part.open = false;
      return item;
    default: return null;
  }
}

const toggle = row => select(entries.get(row) === selected ? null : entries.get(row));

function select(entry) {
  const anchor = isPictureShown() ? canvas : (entry ?? selected)?.row, before = anchor?.getBoundingClientRect();
  selected = entry;
  showPanel();
  markPicture();
  drawCurves();
  if (!anchor?.checkVisibility()) return;
  const after = anchor.getBoundingClientRect();
  scrollBy(0, after.top - before.top); // the panel makes the page narrower
  if (anchor === canvas) {
    move({x: camera.x + before.left - after.left});
    keepInSight(selected);
  } else anchor.scrollIntoView({block: "nearest"});
}

// Show an entry in the list: modules around it are opened, a search that hides it is cleared.
function reveal(entry) {
  if (!entry.row) return;
  if (entry.row.closest(".hidden")) {
    search.value = "";
    filter();
  }
  for (let part = entry.row.closest(".module"); part; part = part.parentElement.closest(".module")) {
    if (part.firstElementChild !== entry.row) part.open = true;
  }
  entry.row.focus({preventScroll: true});
  entry.row.scrollIntoView({block: "center"});
}

// The closest visible item that stands for a node: its row, or the summary of a closed module around it.
function visible(row) {
  let closed = null;
  for (let part = row.closest(".module"); part; part = part.parentElement.closest(".module")) if (!part.open) closed = part;
  return closed ? closed.firstElementChild : row;
}

// Mark the selected item with its producers and consumers, and draw curves to them.
function drawCurves() {
  for (const item of all(".selected, .near", list)) {
    item.classList.remove("selected", "near");
    item.removeAttribute("aria-pressed");
  }
  for (const svg of all(".graph > svg", list)) svg.replaceChildren();
  const row = selected?.row;
  if (!row) return;
  row.classList.add("selected");
  if (selected.kind !== "module") row.setAttribute("aria-pressed", "true");
  const graph = row.closest(".graph"), svg = graph.querySelector("svg"), at = graph.getBoundingClientRect();
  const place = item => { const box = item.getBoundingClientRect(); return [box.left - at.left, box.top - at.top + box.height / 2]; };
  const curve = (node, kind) => {
    const end = visible(node.row), [x, y] = place(visible(row)), [u, v] = place(end);
    end.classList.add("near");
    const path = document.createElementNS(svg.namespaceURI, "path");
    const far = Math.max(0, Math.min(x, u) - 12 - Math.min(40, Math.abs(y - v) / 12));
    path.setAttribute("class", kind);
    path.setAttribute("d", `M${x} ${y} C${far} ${y} ${far} ${v} ${u} ${v}`);
    svg.append(path);
  };
  for (const node of producersOf(selected)) curve(node, "computes");
  for (const node of consumersOf(selected)) curve(node, "uses");
}

search.addEventListener("input", filter);
// Enter goes from one match to the next, Shift+Enter back.
search.addEventListener("keydown", event => {
  if (event.key !== "Enter" || !matches.length) return;
  const at = matches.indexOf(selected), step = event.shiftKey ? -1 : 1;
  jump(matches[at < 0 ? (step < 0 ? matches.length - 1 : 0) : (at + step + matches.length) % matches.length]);
  search.focus({preventScroll: true});
});
list.addEventListener("click", event => {
  const row = event.target.closest(".row");
  if (row) toggle(row);
});
list.addEventListener("focusin", event => {
  if (items.includes(event.target)) setStop(event.target);
});
list.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const isRow = event.target.matches(".row");
  if (isRow && ["Enter", " "].includes(event.key)) toggle(event.target);
  const target = destination(event.target, event.key);
  target?.focus();
  if (target || (isRow && ["Enter", " "].includes(event.key))) event.preventDefault();
});
new ResizeObserver(drawCurves).observe(list);
