// The picture of one module: drawn when it is shown, with zoom, pan, and a way into submodules and back.
const picture = document.getElementById("picture"), canvas = picture.querySelector("svg"), notice = document.getElementById("notice");
const crumbs = document.getElementById("crumbs"), tabs = all("[role=tab]");
const LIMIT = 1500; // items, whose layout takes up to 10 s
const entryOfBox = new WeakMap();
let view = null, boxes = new Map(), lines = [], size = {width: 0, height: 0};
let camera = {x: 0, y: 0, scale: 1};
let worker = null, source = null; // of the layout

const isPictureShown = () => !picture.hidden;
const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS(canvas.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// Show the list or the picture, the latter with a view if one is given.
function showView(name, target = view) {
  for (const tab of tabs) {
    const isShown = tab.dataset.view === name;
    tab.setAttribute("aria-selected", isShown);
    tab.tabIndex = isShown ? 0 : -1;
    document.getElementById(tab.dataset.view).hidden = !isShown;
  }
  if (name === "picture" && (!view || target !== view)) show(target ?? viewAt(graphs[0], null, ""));
  showPanel();
  drawCurves();
}

const shortened = text => text.length > 34 ? `${text.slice(0, 33)}…` : text;
function textsOf(item, count) {
  if (item.kind === "end") return [[item.name, "end"], [dimsOf(item.value), "muted"]];
  if (item.kind === "module") {
    const contents = counted(count, "node");
    return [[lastPart(item.name), "title"], [item.class ? `${item.class}, ${contents}` : contents, "muted"]];
  }
  const weights = item.inputs.filter(value => value?.isWeight && value.bytes > 64).slice(0, 2);
  const inner = count > 1 ? counted(count - 1, "node") + " in subgraphs" : "";
  return [[operatorOf(item), "title"], [item.outputs.length ? dimsOf(item.outputs[0]) : "", "muted"], [inner, "muted"],
    ...weights.map(value => [`${lastPart(value.name)} ${dimsOf(value)}`, "weight"])];
}

function boxOf(item, count) {
  const texts = textsOf(item, count).filter(([text]) => text).map(([text, kind]) => [shortened(text), kind]);
  const width = Math.max(...texts.map(([text]) => text.length)) * 7.4 + 20, height = texts.length * 16 + 10;
  return {item, texts, width, height, isOpenable: item.kind === "module" || item.kind === "node" && viewInside(item) !== null};
}

// Show a view, and an item of it if that is not in sight. The layout is ready later.
function show(target, item = null) {
  view = target;
  showCrumbs();
  worker?.terminate();
  canvas.replaceChildren();
  boxes = new Map();
  lines = [];
  const {counts, edges} = graphOf(view);
  if (counts.size > LIMIT) return notify(`${counted(counts.size, "item")} are too many for a picture; the list shows them.`);
  notify("The picture is laid out …", true);
  const made = [...counts].map(([one, count]) => boxOf(one, count)), places = new Map(made.map((box, index) => [box.item, index]));
  const joined = [...edges].flatMap(([from, targets]) => [...targets].map(([to, values]) => ({from, to, values})));
  source ??= URL.createObjectURL(new Blob([document.getElementById("layout").textContent], {type: "text/javascript"}));
  worker = new Worker(source);
  worker.onerror = event => notify(`The picture cannot be laid out: ${event.message ?? "the browser starts no worker."}`);
  worker.onmessage = ({data: layout}) => {
    notify("");
    size = layout.size;
    boxes = new Map(made.map((box, index) => [box.item, {...box, id: `box${index}`, ...layout.places[index]}]));
    lines = joined.map((line, index) => ({...line, points: layout.curves[index]}));
    draw();
    fit(item ? 0.6 : undefined);
    markPicture();
    if (item) keepInSight(item);
  };
  worker.postMessage({
    nodes: made.map(({width, height}) => ({width, height})),
    edges: joined.map(({from, to}) => [places.get(from), places.get(to)]),
  });
}

function notify(text, isBusy = false) {
  notice.textContent = text;
  notice.hidden = !text;
  canvas.setAttribute("aria-busy", isBusy);
}

function draw() {
  const shape = {viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto"};
  const arrow = svg("marker", {id: "arrow", ...shape}, svg("path", {d: "M0 0L8 4L0 8z"}));
  for (const line of lines) {
    line.element = svg("path", {class: "edge", d: curveOf(line.points), "marker-end": "url(#arrow)"},
      svg("title", {}, [...line.values].map(value => `${value.name}: ${value.type}`).join("\n")));
  }
  for (const box of boxes.values()) box.element = drawnBox(box);
  const drawn = [...lines, ...boxes.values()].map(one => one.element);
  canvas.replaceChildren(svg("defs", {}, arrow), svg("g", {}, ...drawn));
}

function drawnBox(box) {
  const {item, width, height, id} = box, isEnd = item.kind === "end";
  const kind = item.row?.className.match(/matrix|layout|control|other/)?.[0] ?? "";
  const label = item.kind === "node" ? `${operatorOf(item)} ${nameOf(item)}` : item.kind === "module" ? `module ${item.name}` : item.name;
  const made = svg("g", {
    id, role: isEnd ? "img" : "button", "aria-label": label,
    class: ["box", item.kind, kind, box.isOpenable ? "openable" : ""].join(" "),
    transform: `translate(${box.x - width / 2} ${box.y - height / 2})`,
  });
  made.append(svg("title", {}, label), svg("rect", {width, height, rx: isEnd ? height / 2 : 5}));
  made.append(...box.texts.map(([text, style], index) => svg("text", {x: width / 2, y: 17 + 16 * index, class: style, "aria-hidden": true}, text)));
  entryOfBox.set(made, item);
  return made;
}

// A smooth curve through the points of an edge.
function curveOf([first, ...points]) {
  const last = points.pop();
  const parts = points.map((point, index) => {
    const after = points[index + 1], [x, y] = after ? [(point.x + after.x) / 2, (point.y + after.y) / 2] : [last.x, last.y];
    return `Q${point.x} ${point.y} ${x} ${y}`;
  });
  return `M${first.x} ${first.y}${parts.join("") || `L${last.x} ${last.y}`}`;
}

function showCrumbs() {
  const chain = [];
  for (let one = view; one; one = viewAround(one)) chain.unshift(one);
  const here = element("b", {ariaCurrent: "page"}, nameOfView(chain.pop()));
  crumbs.replaceChildren(...chain.flatMap(one => [button(nameOfView(one), () => goUp(one), {className: "link"}), " / "]), here);
}

function focusCanvas() {
  canvas.focus({preventScroll: true});
  canvas.scrollIntoView({block: "nearest"});
}

const isSame = (one, other) => one.graph === other.graph && one.owner === other.owner && one.path === other.path;

// Show a view around the present one.
function goUp(target) {
  let inner = view;
  while (!isSame(viewAround(inner), target)) inner = viewAround(inner);
  show(target, itemInside(target, inner));
  focusCanvas();
}

// The item of a view that an inner view shows.
function itemInside(target, inner) {
  if (inner.graph !== target.graph) return inner.graph.caller;
  if (inner.owner !== target.owner) return inner.owner;
  return inner.graph.modules.get(inner.path) ?? null;
}

function enter(entry) {
  const target = viewInside(entry, boxes.has(entry) ? view.owner : entry.kind === "module" ? ownerOf(entry) : null);
  if (!target) return;
  if (target.graph !== entry.graph) target.graph.caller = entry; // where the function was entered
  showView("picture", target);
  focusCanvas();
}

// Show the module of an entry, and the entry in it.
function showInPicture(entry) {
  const target = viewOf(entry);
  if (!isSame(target, view)) show(target, entry);
  else if (boxes.has(entry)) keepInSight(entry);
  focusCanvas();
}

// The box that stands for the selected entry; null if this view has none.
const selectedBox = () => {
  if (!selected || !view) return null;
  return boxes.get(selected) ?? (selected.kind === "node" ? boxes.get(itemOf(selected, view)) : null) ?? null;
};

// The items of the picture that the search has found, or that contain something found.
function foundItems() {
  const found = new Set();
  const add = node => found.add(itemOf(node, view));
  for (const match of matches) {
    if (match.graph !== view.graph) graphs.forEach(graph => graph.nodes.filter(node => functionOf(node) === match.graph).forEach(add));
    else if (match.kind === "node") add(match);
    else if (match.kind === "value") match.consumers.forEach(add);
    else {
      const path = relative(match.name, view.path);
      if (path) found.add(view.graph.modules.get((view.path ? `${view.path}.` : "") + path.split(".")[0]));
    }
  }
  return found;
}

function markPicture() {
  if (!view) return;
  const marked = selectedBox(), found = foundItems();
  canvas.classList.toggle("searched", search.value.trim() !== "");
  for (const box of boxes.values()) {
    box.element.classList.toggle("found", found.has(box.item));
    box.element.classList.toggle("selected", box === marked);
    if (box.item.kind !== "end") box.element.setAttribute("aria-pressed", box === marked);
  }
  for (const line of lines) line.element.classList.toggle("near", marked !== null && [line.from, line.to].includes(marked.item));
  if (marked) canvas.setAttribute("aria-activedescendant", marked.element.id);
  else canvas.removeAttribute("aria-activedescendant");
}

function move(changes) {
  Object.assign(camera, changes);
  canvas.lastElementChild?.setAttribute("transform", `translate(${camera.x} ${camera.y}) scale(${camera.scale})`);
}

// Zoom with a point of the canvas, by default its middle, at rest.
function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(4, Math.max(0.05, camera.scale * factor)), ratio = scale / camera.scale;
  move({scale, x: x - (x - camera.x) * ratio, y: y - (y - camera.y) * ratio});
}

// Show the whole picture, or its top if that would be smaller than a scale.
function fit(smallest = 0.05) {
  const {clientWidth, clientHeight} = canvas;
  const scale = Math.min(1, Math.max(smallest, Math.min(clientWidth / size.width, clientHeight / size.height)));
  move({scale, x: (clientWidth - size.width * scale) / 2, y: Math.max(0, (clientHeight - size.height * scale) / 2)});
}

// Move an item to the middle unless it is in sight.
function keepInSight(item) {
  const box = boxes.get(item);
  if (!box) return;
  const {clientWidth, clientHeight} = canvas, x = box.x * camera.scale + camera.x, y = box.y * camera.scale + camera.y;
  const dx = box.width / 2 * camera.scale, dy = box.height / 2 * camera.scale;
  if (x >= dx && y >= dy && x <= clientWidth - dx && y <= clientHeight - dy) return;
  move({x: camera.x + clientWidth / 2 - x, y: camera.y + clientHeight / 2 - y});
}

// Select the nearest box in a direction from the selected one, or from the middle of the top edge.
function selectTowards(dx, dy) {
  const from = selectedBox() ?? {x: (canvas.clientWidth / 2 - camera.x) / camera.scale, y: -camera.y / camera.scale};
  const distances = [];
  for (const box of boxes.values()) {
    const x = box.x - from.x, y = box.y - from.y, along = x * dx + y * dy, across = Math.abs(x * dy) + Math.abs(y * dx);
    if (box !== from && box.item.kind !== "end" && along > 0) distances.push([along + 2 * across, box.item]);
  }
  distances.sort(([one], [other]) => one - other);
  if (distances.length) select(distances[0][1]);
}
