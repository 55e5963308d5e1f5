// SPDX-License-Identifier: Apache-2.0
// A sharding drawn on its mesh: a cell for each device, with the slice of the array that it holds.

const MESH_SIDE_MAX = 16;
const SHARD_COLOURS =
    ["var(--s1)", "var(--s2)", "var(--s3)", "var(--s4)", "var(--s5)", "var(--s6)", "var(--s7)"];

function shardingOf(leaf) {
  const {leaves, shardings} = app.document;
  const i = (leaves.sharding || [])[leaf];
  return Number.isInteger(i) ? (shardings || [])[i] || null : null;
}

function axesOf(sharding) {
  if (!sharding || !sharding.mesh) return null;
  const names = sharding.axes || Object.keys(sharding.mesh);
  const split = (sharding.spec || []).map((entry) => [entry || []].flat());
  return {names, sizes: names.map((name) => sharding.mesh[name]), split};
}

function shardingBrief(leaf) {
  const axes = axesOf(shardingOf(leaf));
  if (!axes) return "";
  const parts = axes.split.map((names) => (names.length ? names.join("+") : "·"));
  while (parts.length && parts[parts.length - 1] === "·") parts.pop();
  return parts.length ? nameOf(`(${parts.join(", ")})`, 40) :
                        el("span", {class: "quiet"}, "replicated");
}

// Which slice each device holds: `parts[k]`, of `counts[k]`, of each axis of the array, by the
// device's coordinates in the mesh.
function slicesOf(axes, shape, coordinates) {
  return shape.map((size, k) => {
    let part = 0, count = 1;
    for (const name of axes.split[k] || []) {
      const at = axes.names.indexOf(name);
      if (at < 0) continue;
      part = part * axes.sizes[at] + coordinates[at];
      count *= axes.sizes[at];
    }
    const step = Math.ceil(size / count);
    return {part, count, from: Math.min(size, part * step), to: Math.min(size, (part + 1) * step)};
  });
}

// Rows are the mesh's first axis, columns all others, as far as they fit.
function drawMesh(leaf) {
  const sharding = shardingOf(leaf), axes = axesOf(sharding);
  const shape = app.document.leaves.shape[leaf] || [];
  if (!axes || !axes.sizes.length ||
      !axes.sizes.every((size) => Number.isInteger(size) && size > 0)) {
    return null;
  }
  const [rows, ...others] = axes.sizes;
  const columns = others.reduce((product, size) => product * size, 1);
  const seenRows = Math.min(rows, MESH_SIDE_MAX), seenColumns = Math.min(columns, MESH_SIDE_MAX);
  const cell = seenColumns > 8 ? 26 : 40, tall = seenRows > 8 ? 18 : 24, left = 6, top = 18;
  const svg = d3.create("svg")
                  .attr("class", "mesh")
                  .attr("width", left + seenColumns * cell + 4)
                  .attr("height", top + seenRows * tall + 4)
                  .attr("role", "img");
  svg.append("text")
      .attr("x", left)
      .attr("y", 12)
      .attr("class", "lane")
      .text(visible(`${axes.names[0]}=${rows} ↓${
          others.length ?
              `  ${axes.names.slice(1).map((name, i) => `${name}=${others[i]}`).join(" × ")} →` :
              ""}`));
  const shards = new Map();
  for (let r = 0; r < seenRows; ++r) {
    for (let c = 0; c < seenColumns; ++c) {
      let rest = c;
      const coordinates = [r];
      for (let k = others.length - 1; k >= 0; --k) {
        coordinates[k + 1] = rest % others[k];
        rest = Math.floor(rest / others[k]);
      }
      const slices = slicesOf(axes, shape, coordinates);
      const box = `[${slices.map(({from, to}) => `${from}:${to}`).join(", ")}]`;
      if (!shards.has(box)) shards.set(box, shards.size);
      const device = (sharding.devices || [])[r * columns + c];
      const g =
          svg.append("g").attr("transform", `translate(${left + c * cell},${top + r * tall})`);
      g.append("rect")
          .attr("width", cell - 2)
          .attr("height", tall - 2)
          .attr("rx", 2)
          .style("fill", SHARD_COLOURS[shards.get(box) % SHARD_COLOURS.length]);
      g.append("text")
          .attr("x", (cell - 2) / 2)
          .attr("y", tall / 2 + 3)
          .attr("text-anchor", "middle")
          .text(shards.get(box));
      g.append("title").text(`device ${device === undefined ? r * columns + c : device}: slice ${
          shards.get(box)}, ${box}`);
    }
  }
  const devices = rows * columns, seen = seenRows * seenColumns;
  const note = `${countText(devices, "device")}, ${
      seen < devices ? `the first ${formatCount(seen)} drawn` :
                       `${countText(shards.size, "slice")}; equal numbers hold the same slice`}.`;
  svg.attr("aria-label", `The mesh: ${note}`);
  return el("figure", {class: "mesh-box"}, svg.node(), el("figcaption", {class: "quiet"}, note));
}
