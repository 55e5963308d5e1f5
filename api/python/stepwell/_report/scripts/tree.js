// SPDX-License-Identifier: Apache-2.0
// The tree of the leaves, and the search in it.

const ROWS_OPEN_AT_FIRST = 40;

function leafTree(leaves) {
  const top = {
    name: "",
    key: "",
    level: 0,
    leaf: -1,
    children: [],
    below: new Map(),
    leaves: 0,
    logical: 0,
    stored: 0
  };
  leaves.path.forEach((path, leaf) => {
    const components = componentsOf(path);
    let node = top;
    const sizes = [leaves.logical_bytes[leaf] || 0, leaves.stored_bytes[leaf] || 0];
    components.forEach((name, i) => {
      add(node, sizes);
      const isLeaf = i === components.length - 1;
      let child = isLeaf ? undefined : node.below.get(name);
      if (!child) {
        child = {
          name,
          key: `${node.key}/${name}`,
          level: i + 1,
          leaf: isLeaf ? leaf : -1,
          parent: node,
          children: [],
          below: new Map(),
          leaves: 0,
          logical: 0,
          stored: 0
        };
        node.children.push(child);
        child.position = node.children.length;
        if (!isLeaf) node.below.set(name, child);
      }
      node = child;
    });
    add(node, sizes);
  });
  return top;
}

function add(node, [logical, stored]) {
  node.leaves += 1;
  node.logical += logical;
  node.stored += stored;
}

const tree = {
  mount(body) {
    this.opened = null;
    this.query = "";
    this.search = el("input", {
      type: "search",
      id: "search",
      placeholder: "kernel or params/**/kernel",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => {
        this.query = this.search.value;
        this.filter();
      }
    });
    this.found = el("p", {class: "quiet", id: "found", role: "status"});
    const all = (text, open) =>
        el("button", {
          type: "button",
          class: "small",
          onclick: () => {
            this.opened = new Set();
            if (open) this.openAll(this.top);
            this.draw();
          }
        },
           text);
    this.grid = new Grid({
      label: "Leaves",
      rowsMax: 26,
      columns: [],
      empty: "No leaf matches.",
      tree: (row) => ({
        level: row.level,
        position: row.position,
        setSize: row.parent.children.length,
        expanded: row.leaf < 0 ? String(this.isOpen(row)) : null
      }),
      isChosen: (row) => row.leaf >= 0 && row.leaf === app.leaf,
      onChoose: (row) => (row.leaf >= 0 ? app.setLeaf(row.leaf) : this.onTree(row, "toggle")),
      onTree: (row, key) => this.onTree(row, key)
    });
    fill(
        body,
        el("div", {class: "tools"},
           el("label", {class: "field grow"}, el("span", {}, "Find"), this.search),
           all("Expand all", true), all("Collapse all", false)),
        this.found, this.grid.element,
        el("p", {class: "quiet hint"},
           "Text finds paths that contain it; * and ? stand for characters ",
           "of a name, ** for any depth."));
    app.on("document", () => this.take());
    app.on("leaf", () => this.grid.drawRows());
  },

  // Where no array was on a mesh, there is no sharding to tell apart.
  columns() {
    const {shardings, leaves} = app.document;
    const meshes = (shardings || []).map((each) => axesOf(each) !== null);
    const isSharded = (leaves.sharding || []).some((each) => meshes[each]);
    const size = (key, label) =>
        ({key, label, width: "90px", align: "right", cell: (row) => bytesText(row[key])});
    return [
      {
        key: "name",
        label: "Name",
        width: "minmax(150px, 1fr)",
        header: true,
        cell: (row) => this.name(row)
      },
      {
        key: "type",
        label: "Type",
        width: "152px",
        cell: (row) =>
            (row.leaf < 0 ? el("span", {class: "quiet"}, countText(row.leaves, "leaf", "leaves")) :
                            nameOf(typeOf(row.leaf), 60))
      },
      {...size("logical", "Size"), cell: (row) => this.size(row)}, size("stored", "Stored"),
      ...(isSharded ? [{
        key: "sharding",
        label: "Sharding",
        width: "104px",
        cell: (row) => (row.leaf < 0 ? "" : shardingBrief(row.leaf))
      }] :
                      [])
    ];
  },

  name(row) {
    const sign = row.leaf < 0 ? (this.isOpen(row) ? "▾" : "▸") : "";
    const name =
        el("span", {class: "tree-name"},
           el("span", {class: row.leaf < 0 ? "twisty" : "no-twisty", "aria-hidden": "true"}, sign),
           row.name === "" ?
               el("span", {class: "quiet"}, row.level === 1 ? "(the state)" : "(empty)") :
               nameOf(row.name, 160));
    name.style.paddingLeft = `${(row.level - 1) * 14}px`;
    return name;
  },

  size(row) {
    const bar = el("span", {class: "bar", "aria-hidden": "true"});
    bar.style.width = `${100 * row.logical / Math.max(1, this.top.logical)}%`;
    return [bar, bytesText(row.logical)];
  },

  take() {
    const {leaves} = app.document;
    // Most documents of a live run have the same leaves as the one before.
    const same = this.paths && this.paths.length === leaves.path.length &&
        this.paths.every((path, i) => path === leaves.path[i]);
    this.paths = leaves.path;
    this.components = same ? this.components : leaves.path.map(componentsOf);
    this.top = leafTree(leaves);
    if (!this.opened) this.openFirst();
    this.grid.columns = this.columns();
    this.filter(true);
  },

  // The upper levels, as many as stay in sight.
  openFirst() {
    this.opened = new Set();
    let level = [this.top], rows = this.top.children.length;
    while (level.length) {
      level = level.flatMap((node) => node.children).filter(({leaf}) => leaf < 0);
      rows += d3.sum(level, ({children}) => children.length);
      if (rows > ROWS_OPEN_AT_FIRST) break;
      for (const {key} of level) this.opened.add(key);
    }
  },

  openAll(node) {
    for (const child of node.children) {
      if (child.leaf >= 0) continue;
      this.opened.add(child.key);
      this.openAll(child);
    }
  },

  filter(keepsPlace = false) {
    const query = this.query.trim();
    this.matches = null;
    if (query) {
      const lower = query.toLowerCase(), takes = isGlob(query) ? globOf(query) : null;
      this.matches = new Set(this.paths.map((path, leaf) => leaf)
                                 .filter(
                                     (leaf) =>
                                         (takes ? takes(this.components[leaf]) :
                                                  this.paths[leaf].toLowerCase().includes(lower))));
    }
    const {leaves} = app.document;
    const found = this.matches ? this.matches.size : leaves.path.length;
    const logical = this.matches ?
        d3.sum([...this.matches], (leaf) => leaves.logical_bytes[leaf] || 0) :
        this.top.logical;
    const of = this.matches ? ` of ${formatCount(leaves.path.length)}` : "";
    this.found.textContent = `${formatCount(found)}${of} ${
        leaves.path.length === 1 ? "leaf" : "leaves"}, ${bytesText(logical)}${
        leaves.shown < leaves.total_leaves ?
            `; ${formatCount(leaves.total_leaves - leaves.shown)} more are not on this page` :
            ""}.`;
    this.draw(keepsPlace);
  },

  isOpen(row) {
    return this.matches !== null || this.opened.has(row.key);
  },

  draw(keepsPlace = true) {
    const rows = [];
    const holds = (node) =>
        node.leaf >= 0 ? this.matches.has(node.leaf) : node.children.some(holds);
    const visit = (node) => {
      for (const child of node.children) {
        if (this.matches && !holds(child)) continue;
        rows.push(child);
        if (child.leaf < 0 && this.isOpen(child)) visit(child);
      }
    };
    visit(this.top);
    this.rows = rows;
    this.grid.setRows(rows, keepsPlace);
  },

  // A key or a click on a node. Returns the row to go to, if any.
  onTree(row, key) {
    const isNode = row.leaf < 0, isOpen = isNode && this.isOpen(row);
    if (key === "close" && (!isNode || !isOpen)) return this.rows.indexOf(row.parent);
    if (key === "open" && isOpen) return this.rows.indexOf(row) + 1;
    if (isNode && this.matches === null) {
      if (isOpen)
        this.opened.delete(row.key);
      else
        this.opened.add(row.key);
      this.draw();
    }
    return null;
  },
};

function typeOf(leaf) {
  const {dtype, shape, kind} = app.document.leaves;
  if (!shape[leaf]) return kind[leaf] || UNKNOWN;
  return `${dtype[leaf] || kind[leaf]}[${shape[leaf].join(", ")}]`;
}
