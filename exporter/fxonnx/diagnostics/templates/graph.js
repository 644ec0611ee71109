// The graphs of the page: nodes, values and modules, each with the item of the list that stands for it.
const {graphs, texts} = JSON.parse(document.getElementById("data").textContent);
const entries = new Map(); // item of the list to node, weight or module

function connect(graph, list) {
  graph.caller = null; // of a function: the node that it was entered from
  graph.values = graph.values.map(([name, type, bytes, elements]) => ({
    kind: "value", graph, name, type: texts[type], bytes, elements: texts[elements], isWeight: bytes !== undefined,
    producer: null, consumers: [],
    owner: null, // the node that has it as an input of a subgraph
    ends: [], // "output", or the names of the subgraphs that return it
  }));
  const values = places => (places ?? []).map(place => graph.values[place] ?? null);
  const pairs = mapping => Object.entries(mapping ?? {}).map(([name, text]) => [name, texts[text]]);
  graph.inputs = values(graph.inputs);
  graph.outputs = values(graph.outputs);
  graph.nodes = graph.nodes.map(node => ({
    ...node, kind: "node", graph, domain: node.domain ?? "", name: node.name ?? "",
    inputs: values(node.inputs), outputs: values(node.outputs),
    subgraphs: (node.subgraphs ?? []).map(([name, inputs, outputs]) => ({name, inputs: values(inputs), outputs: values(outputs)})),
    attributes: pairs(node.attributes), metadata: pairs(node.metadata),
    module: texts[node.module], line: texts[node.line], trace: (node.trace ?? []).map(place => texts[place]),
  }));
  for (const value of graph.outputs) value.ends.push("output");
  for (const node of graph.nodes) {
    node.owner = graph.nodes[node.owner] ?? null; // the node whose subgraph has this one
    for (const value of node.outputs) value.producer = node;
    for (const value of new Set(node.inputs)) value?.consumers.push(node);
    for (const {name, inputs, outputs} of node.subgraphs) {
      for (const value of inputs) value.owner = node;
      for (const value of outputs) value.ends.push(name);
    }
  }
  graph.classes = new Map(Object.entries(graph.classes)); // a module may be named constructor
  graph.modules = new Map(all(".module", list).map(part => {
    const path = part.dataset.path;
    return [path, {kind: "module", graph, name: path, class: graph.classes.get(path) ?? "", row: part.firstElementChild}];
  }));
  for (const row of all("[data-node]", list)) graph.nodes[row.dataset.node].row = row;
  for (const row of all("[data-weight]", list)) graph.values[row.dataset.weight].row = row;
  for (const entry of [...graph.nodes, ...graph.values, ...graph.modules.values()]) if (entry.row) entries.set(entry.row, entry);
}
all(".graph").forEach((list, index) => connect(graphs[index], list));

const unique = nodes => [...new Set(nodes)].filter(node => node);
const producersOf = entry => unique((entry.inputs ?? []).map(value => value?.producer));
const consumersOf = entry => unique((entry.kind === "value" ? [entry] : entry.outputs ?? []).flatMap(value => value.consumers));
const operatorOf = node => node.domain ? `${node.domain}::${node.type}` : node.type;
// The dims of a value: "[batch, 3]".
const dimsOf = value => value.type.includes("[") ? value.type.slice(value.type.indexOf("[")) : "";
const nameOf = node => node.name || node.outputs.find(value => value.name)?.name || "";
const lastPart = path => path.slice(path.lastIndexOf(".") + 1);
const functionOf = node => graphs.find(graph => graph !== graphs[0] && graph.name === node.type && graph.domain === node.domain);
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// The path of a module relative to a module around it; null outside of it.
function relative(path, around) {
  if (!around || path === around) return path === around ? "" : path;
  return path.startsWith(`${around}.`) ? path.slice(around.length + 1) : null;
}
