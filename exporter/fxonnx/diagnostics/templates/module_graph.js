// The graph of one module: its own nodes, one box for each submodule, and the values that enter and leave it.
// A view is a graph or function, the node whose subgraphs are shown (null at the top), and the path of a module.
const baseOf = owner => owner ? owner.module : "";
const parentPath = path => path.slice(0, Math.max(path.lastIndexOf("."), 0));

function viewOf(entry) {
  if (entry.kind === "value") return entry.consumers.length ? viewOf(entry.consumers[0]) : viewAt(entry.graph, null, "");
  if (entry.kind === "node") return viewAt(entry.graph, entry.owner, entry.module);
  return viewAt(entry.graph, ownerOf(entry), parentPath(entry.name));
}
// A node of a subgraph may belong to a module outside of the module of its If or Loop: it is shown directly in the subgraph.
const viewAt = (graph, owner, path) => ({graph, owner, path: relative(path, baseOf(owner)) === null ? baseOf(owner) : path});

// The node whose subgraph has the nodes of a module; null if they are at the top.
function ownerOf(module) {
  const nodes = module.graph.nodes.filter(node => relative(node.module, module.name) !== null);
  return nodes.some(node => !node.owner) ? null : nodes[0]?.owner ?? null;
}

function viewInside(entry, owner = null) {
  if (entry.kind === "module") return {graph: entry.graph, owner, path: entry.name};
  if (entry.subgraphs.length) return {graph: entry.graph, owner: entry, path: entry.module};
  const called = functionOf(entry);
  return called ? viewAt(called, null, "") : null;
}

function viewAround(view) {
  if (view.path !== baseOf(view.owner)) return {...view, path: parentPath(view.path)};
  if (view.owner) return viewOf(view.owner);
  if (view.graph.caller) return viewOf(view.graph.caller);
  return view.graph === graphs[0] ? null : viewAt(graphs[0], null, "");
}

function nameOfView(view) {
  if (view.path !== baseOf(view.owner)) return lastPart(view.path);
  return view.owner ? `${operatorOf(view.owner)} ${nameOf(view.owner)}` : view.graph.name || "model";
}

// The node or module that stands for a node in a view; null outside of it.
function itemOf(node, view) {
  while (node && node.owner !== view.owner) node = node.owner;
  if (!node || node.graph !== view.graph) return null;
  const path = relative(node.module, view.path);
  if (path === null) return view.owner && view.path === baseOf(view.owner) ? node : null;
  if (path === "") return node;
  const child = path.split(".")[0];
  return view.graph.modules.get(view.path ? `${view.path}.${child}` : child);
}

// Items with their numbers of nodes, and edges: item to item to the values between them.
function graphOf(view) {
  const {graph, owner} = view, place = new Map(graph.nodes.map(node => [node, itemOf(node, view)]));
  const counts = new Map(), edges = new Map(), ends = new Map();
  const end = (value, isInput, text = value.name) => {
    const key = `${isInput} ${text}`;
    if (!ends.has(key)) ends.set(key, {kind: "end", value, isInput, name: text});
    counts.set(ends.get(key), 0);
    return ends.get(key);
  };
  const source = value => place.get(value.producer) ?? end(value, true);
  const join = (from, to, value) => {
    if (from === to) return;
    if (!edges.has(from)) edges.set(from, new Map());
    const targets = edges.get(from);
    if (!targets.has(to)) targets.set(to, new Set());
    targets.get(to).add(value);
  };
  for (const node of graph.nodes) if (place.get(node)) counts.set(place.get(node), (counts.get(place.get(node)) ?? 0) + 1);
  for (const [node, item] of place) {
    if (!item) continue;
    // The values of a subgraph inside of the item are no inputs of the item.
    const read = [...node.inputs, ...node.subgraphs.flatMap(one => one.outputs)];
    for (const value of read) if (value && !value.isWeight && !place.get(value.owner)) join(source(value), item, value);
    for (const value of node.outputs) {
      if (value.consumers.some(consumer => !place.get(consumer))) join(item, end(value, false), value);
    }
  }
  const results = owner ? owner.subgraphs.flatMap(({name, outputs}) => outputs.map(value => [value, `${name}: ${value.name}`]))
    : graph.outputs.map(value => [value, value.name]);
  for (const [value, text] of results) {
    if (place.get(value.producer) || view.path === baseOf(owner)) join(source(value), end(value, false, text), value);
  }
  return {counts, edges};
}
