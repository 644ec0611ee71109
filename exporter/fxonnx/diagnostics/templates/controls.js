// Mouse, touch and keyboard of the picture, and the keys of the whole page.
const pointers = new Map(); // of the fingers or the mouse on the canvas
let dragged = false; // a drag does not select

function boxAt(event) {
  const drawn = event.target.closest(".box");
  return drawn ? entryOfBox.get(drawn) : null;
}

// Enter a box, or go to the node that a value comes from or goes to.
function open(item) {
  if (item.kind !== "end") return enter(item);
  const isOutside = node => node && !itemOf(node, view);
  const node = item.isInput ? item.value.producer : item.value.consumers.find(isOutside);
  if (node) jump(node);
}

canvas.addEventListener("pointerdown", event => {
  pointers.set(event.pointerId, event);
  dragged = false;
});
canvas.addEventListener("pointermove", event => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
  if (!dragged && Math.hypot(dx, dy) < 4) return;
  dragged = true;
  canvas.setPointerCapture(event.pointerId);
  const [other] = [...pointers.values()].filter(one => one.pointerId !== event.pointerId);
  if (other) {
    const at = canvas.getBoundingClientRect(), distance = one => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    zoom(distance(event) / (distance(before) || 1), other.clientX - at.left, other.clientY - at.top);
  } else move({x: camera.x + dx, y: camera.y + dy});
  pointers.set(event.pointerId, event);
});
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, event => pointers.delete(event.pointerId));
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const at = canvas.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - at.left, event.clientY - at.top);
}, {passive: false});
// The panel that the first click of a double click opens may move the picture: the item of the first click counts.
let clicked = null;
document.addEventListener("click", event => {
  if (event.detail > 1) return;
  clicked = canvas.contains(event.target) && !dragged ? boxAt(event) : null;
  if (clicked && clicked.kind !== "end") select(clicked);
});
document.addEventListener("dblclick", () => {
  if (clicked) open(clicked);
});

const DIRECTIONS = {ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0]};
canvas.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const [dx, dy] = DIRECTIONS[event.key] ?? [0, 0], around = viewAround(view), box = selectedBox();
  if (event.shiftKey && (dx || dy)) selectTowards(dx, dy);
  else if (dx || dy) move({x: camera.x - 60 * dx, y: camera.y - 60 * dy});
  else if (["+", "="].includes(event.key)) zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") fit();
  else if (event.key === "Enter" && box) open(box.item);
  else if (event.key === "Backspace" && around) goUp(around);
  else return;
  event.preventDefault();
});

const BUTTONS = {"zoom-in": () => zoom(1.25), "zoom-out": () => zoom(0.8), "zoom-fit": () => fit()};
for (const [id, action] of Object.entries(BUTTONS)) document.getElementById(id).addEventListener("click", action);
for (const tab of tabs) {
  tab.addEventListener("click", () => {
    showView(tab.dataset.view, selected ? viewOf(selected) : view);
    if (selected && !isPictureShown()) reveal(selected);
  });
  tab.addEventListener("keydown", event => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const other = tabs.find(one => one !== tab);
    other.click();
    other.focus();
  });
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "/" && event.target !== search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape" && event.target === search && search.value) {
    search.value = "";
    filter();
  } else if (event.key === "Escape") clear();
});
for (const part of all("[data-scripted]")) part.hidden = false; // without scripts they would do nothing
