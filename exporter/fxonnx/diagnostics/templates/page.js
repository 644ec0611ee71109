const all = (selector, root = document) => [...root.querySelectorAll(selector)];
document.querySelector("nav").append(...all("section").map(section => {
  const link = document.createElement("a");
  link.href = `#${section.id}`;
  link.textContent = section.querySelector("h2").textContent;
  return link;
}));

const search = document.getElementById("search");
search?.addEventListener("input", () => {
  const text = search.value.trim().toLowerCase();
  const rows = all(".row");
  const named = all(".module").filter(part => text && part.firstElementChild.querySelector("b").textContent.toLowerCase().includes(text));
  let found = 0;
  for (const row of rows) {
    const matches = !text || row.textContent.toLowerCase().includes(text);
    row.classList.toggle("hidden", !matches && !named.some(part => part.contains(row)));
    found += matches;
  }
  for (const part of all(".module")) {
    const shown = !text || named.includes(part) || part.querySelector(".row:not(.hidden)") !== null;
    part.classList.toggle("hidden", !shown);
    if (text) part.open = shown;
  }
  document.getElementById("found").textContent = text ? `${found + named.length} found` : "";
  draw(null);
});

// The closest visible part of the page that stands for a node: its row, or the summary of a closed module around it.
const visible = row => {
  let closed = null;
  for (let part = row.closest(".module"); part; part = part.parentElement.closest(".module")) if (!part.open) closed = part;
  return closed ? closed.firstElementChild : row;
};

// Mark the producers and consumers of a node and draw curves to them.
function draw(row) {
  for (const one of all(".selected, .near")) one.classList.remove("selected", "near");
  for (const svg of all(".graph svg")) svg.replaceChildren();
  if (!row) return;
  const graph = row.closest(".graph"), svg = graph.querySelector("svg"), at = graph.getBoundingClientRect();
  row.classList.add("selected");
  const place = element => { const box = element.getBoundingClientRect(); return [box.left - at.left, box.top - at.top + box.height / 2]; };
  const connect = (other, kind) => {
    const end = visible(other), [x, y] = place(row), [u, v] = place(end);
    end.classList.add("near");
    const path = document.createElementNS(svg.namespaceURI, "path"), far = Math.min(x, u) - 12 - Math.min(40, Math.abs(y - v) / 12);
    path.setAttribute("class", kind);
    path.setAttribute("d", `M${x} ${y} C${far} ${y} ${far} ${v} ${u} ${v}`);
    svg.append(path);
  };
  const before = row.dataset.from.split(" ");
  for (const other of all(".node[data-node]", graph)) {
    if (before.includes(other.dataset.node)) connect(other, "computes");
    if (other.dataset.from.split(" ").includes(row.dataset.node)) connect(other, "uses");
  }
}
for (const row of all(".node[data-node]")) row.addEventListener("click", () => draw(row.classList.contains("selected") ? null : row));
for (const part of all(".module")) part.addEventListener("toggle", () => draw(document.querySelector(".selected")));
