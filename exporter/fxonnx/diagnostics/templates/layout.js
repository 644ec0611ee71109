// The worker that lays a picture out, so that the page does not wait. dagre stands before this text.
onmessage = ({data: {nodes, edges}}) => {
  const graph = new dagre.graphlib.Graph().setGraph({nodesep: 20, ranksep: 34, marginx: 10, marginy: 10}).setDefaultEdgeLabel(() => ({}));
  nodes.forEach((node, index) => graph.setNode(String(index), node));
  for (const [from, to] of edges) graph.setEdge(String(from), String(to));
  dagre.layout(graph);
  const {width, height} = graph.graph();
  postMessage({
    size: {width: Math.max(width, 1), height: Math.max(height, 1)},
    places: nodes.map((_, index) => (({x, y}) => ({x, y}))(graph.node(String(index)))),
    curves: edges.map(([from, to]) => graph.edge(String(from), String(to)).points),
  });
};
