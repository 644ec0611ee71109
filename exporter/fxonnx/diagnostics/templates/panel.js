// The side panel: everything about the selected node, weight or module, with links to its neighbours.
const panel = document.getElementById("panel");

// Select an entry and show it in the view that is open, list or picture.
function jump(entry) {
  select(entry);
  if (isPictureShown()) showInPicture(entry);
  else reveal(entry);
}

const button = (text, action, properties = {}) => element("button", {type: "button", onclick: action, ...properties}, text);
const linkTo = (entry, text) => button(text, () => jump(entry), {className: "link"});
const linkToNode = node => linkTo(node, `${operatorOf(node)} ${nameOf(node)}`);
const code = text => element("code", {}, text);
const muted = (tag, text) => element(tag, {className: "muted"}, text);

function bytesText(bytes) {
  if (bytes < 2 ** 10) return counted(bytes, "byte");
  return bytes < 2 ** 20 ? `${(bytes / 2 ** 10).toFixed(1)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

// Names with their contents; those without content are omitted.
function facts(pairs) {
  const shown = pairs.filter(([, content]) => content);
  return element("dl", {}, ...shown.flatMap(([name, content]) => [element("dt", {}, name), element("dd", {}, content)]));
}

const group = (title, ...contents) => element("div", {}, element("h4", {}, title), ...contents);
const numbered = items => element("ol", {}, ...items);

// The roles of a value in its graph: weight, input, output.
function rolesOf(value) {
  const roles = value.ends.map(end => end === "output" ? end : `output of ${end}`);
  if (value.isWeight) roles.unshift(`weight, ${bytesText(value.bytes)}`);
  else if (!value.producer) roles.unshift(value.owner ? "input of the subgraph" : "input");
  return roles;
}

function valueItem(value, neighbours, label) {
  const type = value.elements ? `${value.type} = ${value.elements}` : value.type;
  return element("li", {className: value.isWeight ? "weight" : ""},
    value.row ? linkTo(value, value.name) : code(value.name), " ", muted("code", type),
    ...rolesOf(value).flatMap(role => [" ", element("span", {className: "tag"}, role)]),
    neighbours.length ? element("div", {}, muted("span", label), ...neighbours.flatMap(node => [" ", linkToNode(node)])) : null);
}

function inputItem(value) {
  return value ? valueItem(value, value.producer ? [value.producer] : [], "computed by") : element("li", {}, muted("span", "omitted"));
}

function nodeParts(node) {
  const {opsets, classes, modules} = node.graph;
  const metadata = node.metadata.map(([key, text]) => [key === "pkg.torch.onnx.fx_node" ? "FX node" : key, code(text)]);
  return [
    facts([
      ["name", node.name],
      ["domain", `${node.domain || "ai.onnx"} ${opsets[node.domain] ?? ""}`],
      ["module", node.module && linkTo(modules.get(node.module), node.module)],
      ["class", classes.get(node.module)],
      ["line", node.line && code(node.line)],
    ]),
    node.attributes.length ? group("Attributes", facts(node.attributes.map(([name, text]) => [name, code(text)]))) : null,
    node.inputs.length ? group("Inputs", numbered(node.inputs.map(inputItem))) : null,
    group("Outputs", numbered(node.outputs.map(value => valueItem(value, value.consumers, "used by")))),
    metadata.length ? group("Metadata", facts(metadata)) : null,
    node.trace.length ? group("Stack trace", element("pre", {tabIndex: 0}, node.trace.join("\n"))) : null,
  ];
}

function weightParts(weight) {
  return [
    facts([["type", code(weight.type)], ["value", weight.elements && code(weight.elements)], ["size", bytesText(weight.bytes)]]),
    weight.consumers.length ? group("Used by", numbered(weight.consumers.map(node => element("li", {}, linkToNode(node))))) : null,
  ];
}

function moduleParts(module) {
  const nodes = module.graph.nodes.filter(node => relative(node.module, module.name) !== null);
  const figures = all(".figures i", module.row).map(figure => element("div", {}, figure.textContent.trim()));
  return [facts([["class", module.class], ["nodes", String(nodes.length)], ["in all", figures.length > 1 && element("div", {}, ...figures.slice(0, -1))]])];
}

function buttons(entry) {
  const other = isPictureShown() ? "list" : "picture";
  const shown = [button(`Show in the ${other}`, () => {
    showView(other, viewOf(selected));
    jump(selected);
  })];
  if (entry.kind !== "value" && viewInside(entry)) {
    const inner = entry.kind === "module" ? "module" : entry.subgraphs.length ? "subgraphs" : "function";
    shown.push(button(`Show the ${inner}`, () => enter(entry)));
  }
  return element("div", {className: "tools"}, ...shown);
}

// The panel stays out of the way until something is selected.
function showPanel() {
  const hadFocus = panel.contains(document.activeElement);
  panel.hidden = !selected;
  document.body.classList.toggle("with-panel", selected !== null);
  if (!selected) return;
  const title = selected.kind === "node" ? operatorOf(selected) : selected.name || "model";
  const parts = {node: nodeParts, value: weightParts, module: moduleParts}[selected.kind](selected);
  const close = button("×", clear, {className: "close", ariaLabel: "Close"});
  panel.replaceChildren(element("header", {}, element("h3", {}, title), close), buttons(selected), ...parts.filter(made => made));
  panel.scrollTop = 0;
  if (hadFocus) close.focus();
}

function clear() {
  const row = selected?.row, hadFocus = panel.contains(document.activeElement);
  select(null);
  if (hadFocus) (isPictureShown() ? canvas : row)?.focus({preventScroll: true});
}
