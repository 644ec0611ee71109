// The side panel: everything about the selected node, weight or module, with links to its neighbours.
const panel = document.getElementById("panel");

// Select an entry and show it in the view that is open, list or picture.
function jump(entry) {
  select(entry);
  if (isPictureShown()) showInPicture(entry);
  else reveal(entry);
}

const button = (text, action, properties = {}) => element("button", {type: "button", onclick: action, ...properties}, text);
const link = node => button(`${operatorOf(node)} ${nameOf(node)}`, () => jump(node), {className: "link"});
const code = text => element("code", {}, text);
const bytesText = bytes => bytes < 2 ** 10 ? counted(bytes, "byte") : bytes < 2 ** 20 ? `${(bytes / 2 ** 10).toFixed(1)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;

// A table of names with contents; rows without content are omitted.
const facts = pairs => element("dl", {}, ...pairs.filter(([, content]) => content).flatMap(
  ([name, content]) => [element("dt", {}, name), element("dd", {}, content)]));

const part = (title, ...contents) => contents.length ? element("div", {}, element("h4", {}, title), ...contents) : null;

function valueItem(value, neighbours, label) {
  const kinds = [value.isWeight ? `weight, ${bytesText(value.bytes)}` : "", !value.isWeight && !value.producer ? (value.owner ? "input of the subgraph" : "input") : "",
    ...value.ends.map(end => end === "output" ? end : `output of ${end}`)].filter(kind => kind);
  const links = neighbours.flatMap(node => [" ", link(node)]);
  return element("li", {className: value.isWeight ? "weight" : ""},
    value.isWeight && value.row ? button(value.name, () => jump(value), {className: "link"}) : code(value.name), " ",
    element("code", {className: "muted"}, value.elements ? `${value.type} = ${value.elements}` : value.type), ...kinds.flatMap(kind => [" ", element("span", {className: "tag"}, kind)]),
    links.length ? element("div", {}, element("span", {className: "muted"}, label), ...links) : "");
}
const valueList = items => items.length ? [element("ol", {}, ...items)] : [];

function nodeParts(node) {
  const {opsets} = node.graph;
  return [
    facts([
      ["name", node.name], ["domain", `${node.domain || "ai.onnx"} ${opsets[node.domain] ?? ""}`],
      ["module", node.module && button(node.module, () => jump(node.graph.modules.get(node.module)), {className: "link"})], ["class", node.graph.classes[node.module]], ["line", node.line && code(node.line)],
    ]),
    part("Attributes", ...(node.attributes.length ? [facts(node.attributes.map(([name, text]) => [name, code(text)]))] : [])),
    part("Inputs", ...valueList(node.inputs.map(value => value ? valueItem(value, producersOf({inputs: [value]}), "computed by") : element("li", {className: "muted"}, "omitted")))),
    part("Outputs", ...valueList(node.outputs.map(value => valueItem(value, value.consumers, "used by")))),
    part("Metadata", ...(node.metadata.length ? [facts(node.metadata.map(([key, text]) => [key === "pkg.torch.onnx.fx_node" ? "FX node" : key, code(text)]))] : [])),
    part("Stack trace", ...(node.trace.length ? [element("pre", {}, node.trace.join("\n"))] : [])),
  ];
}

function entryParts(entry) {
  if (entry.kind === "node") return nodeParts(entry);
  if (entry.kind === "value") return [
    facts([["type", code(entry.type)], ["value", entry.elements && code(entry.elements)], ["size", bytesText(entry.bytes)]]),
    part("Used by", ...valueList(entry.consumers.map(node => element("li", {}, link(node))))),
  ];
  const nodes = entry.graph.nodes.filter(node => relative(node.module, entry.name) !== null);
  return [facts([["class", entry.class], ["nodes", String(nodes.length)]])];
}

function actions(entry) {
  if (entry.kind === "value" || !viewInside(entry)) return [];
  const inner = entry.kind === "module" ? "module" : entry.subgraphs.length ? "subgraphs" : "function";
  return [button(`Show the ${inner}`, () => enter(entry))];
}

// The panel stays out of the way until something is selected.
function showPanel() {
  const hadFocus = panel.contains(document.activeElement);
  panel.hidden = !selected;
  document.body.classList.toggle("with-panel", selected !== null);
  if (!selected) return;
  const titles = {node: operatorOf, value: value => value.name, module: module => module.name || "model"};
  const close = button("×", clear, {className: "close", ariaLabel: "Close"});
  const other = isPictureShown() ? "list" : "picture";
  panel.replaceChildren(
    element("header", {}, element("h3", {}, titles[selected.kind](selected)), close),
    element("div", {className: "tools"}, button(`Show in the ${other}`, () => { showView(other, viewOf(selected)); jump(selected); }), ...actions(selected)),
    ...entryParts(selected).filter(made => made));
  panel.scrollTop = 0;
  if (hadFocus) close.focus();
}

function clear() {
  const row = selected?.row, hadFocus = panel.contains(document.activeElement);
  select(null);
  if (hadFocus) (isPictureShown() ? canvas : row)?.focus({preventScroll: true});
}
