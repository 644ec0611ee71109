// Helpers of all parts of the page, and the links to its sections.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Texts become text nodes, so that names of a model are never read as HTML.
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter(child => child !== null));
  return made;
}

document.getElementById("sections").append(...all("section").map(section =>
  element("a", {href: `#${section.id}`}, section.querySelector("h2").textContent)));
