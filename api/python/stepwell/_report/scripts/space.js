// SPDX-License-Identifier: Apache-2.0
// Space: of the whole store, of each step, of each item.

const SPACE_KINDS = [
  ["live_bytes", "Live", "payloads of the steps that are there", "var(--c1)"],
  ["padding_bytes", "Padding", "what payloads do not fill of their blocks", "var(--c3)"],
  ["overhead_bytes", "Overhead", "frames, their copies and catalogs", "var(--c4)"],
  ["dead_bytes", "Dead", "of deleted steps: given back by and by", "var(--c2)"],
  ["reserved_bytes", "Reserved", "allocated ahead", "var(--s5)"],
  ["index_bytes", "Index", "the index", "var(--s7)"],
  ["other_bytes", "Other", "small files", "var(--muted)"],
];

const space = {
  mount(body) {
    this.store = el("div", {id: "space-store"});
    this.log =
        toggle("Log scale", false, (on) => this.charts.forEach((chart) => chart.set({log: on})));
    const chart = (label) =>
        new Chart({label, format: bytesText, height: 120, zero: true, steps: [], series: []});
    this.charts = [chart("Bytes that a step refers to"), chart("Bytes that are a step's own")];
    const title = (text, names) =>
        el("h3", {}, text, names.map((name, s) => el("span", {class: "key"}, lineIcon(s), name)));
    this.boxes =
        [["Referenced", ["stored", "loaded"]], ["Its own", ["owned", "deleting frees"]]].map(
            ([text, names], i) =>
                el("div", {class: "chart-box"}, title(text, names), this.charts[i].figure));
    this.unknown = el("p", {class: "quiet"});
    this.items = new Grid({
      label: "Items",
      rowsMax: 6,
      columns: this.columns(),
      empty: "No item.",
      sort: {key: "stored", down: true}
    });
    this.itemsTitle = el("h3", {});
    fill(
        body, this.store, el("div", {class: "tools"}, this.log), this.boxes, this.unknown,
        this.itemsTitle, this.items.element);
    app.on("document", () => this.draw());
    app.on("step", () => this.showStep());
  },

  columns() {
    const of = (name, key) => ((app.document.items[name] || {})[key] || [])[app.step];
    const bytes = (key, label) => ({
      key: key.split("_")[0],
      label,
      width: "100px",
      align: "right",
      value: (name) => (isNumber(of(name, key)) ? of(name, key) : null),
      cell: (name) => bytesText(of(name, key))
    });
    return [
      {
        key: "item",
        label: "Item",
        width: "minmax(120px, 1fr)",
        header: true,
        text: true,
        value: (name) => name,
        cell: (name) => nameOf(name, 80)
      },
      bytes("logical_bytes", "Size"), bytes("stored_bytes", "Stored"),
      bytes("owned_bytes", "Its own")
    ];
  },

  draw() {
    const {steps} = app.document;
    const all = steps.number.map((number, step) => step);
    const column = (name) => steps[name] || all.map(() => null);
    this.charts[0].set({
      steps: all,
      series: [
        {name: "stored", values: column("stored_bytes")},
        {name: "loaded", values: column("logical_bytes")}
      ]
    });
    this.charts[1].set({
      steps: all,
      series: [
        {name: "owned", values: column("owned_bytes")},
        {name: "deleting frees", values: column("frees_bytes")}
      ]
    });
    const isUnknown = all.length > 0 && column("frees_bytes").every((value) => value === null);
    this.unknown.textContent = isUnknown ? "What deleting a step frees is not known here." : "";
    this.drawStore();
    this.showStep();
  },

  drawStore() {
    const given = app.document.space;
    if (!given || !isNumber(given.total_bytes)) {
      fill(this.store, el("p", {class: "quiet"}, "The space of the whole store is not known."));
      return;
    }
    const kinds = SPACE_KINDS.filter(([key]) => given[key] > 0);
    const bar =
        el("div", {
          class: "stack",
          role: "img",
          "aria-label": kinds.map(([key, name]) => `${name} ${bytesText(given[key])}`).join(", ")
        },
           kinds.map(([key, , , colour]) => {
             const part = el("span", {});
             part.style.width = `${100 * given[key] / Math.max(1, given.total_bytes)}%`;
             part.style.background = colour;
             return part;
           }));
    const key = (colour) => {
      const box = el("span", {class: "swatch", "aria-hidden": "true"});
      box.style.background = colour;
      return box;
    };
    fill(
        this.store, bar,
        el("dl", {class: "facts"},
           [
             ["Whole store", "as the file system allocates it", given.total_bytes, null],
             ...kinds.map(([name, word, what, colour]) => [word, what, given[name], colour]),
             ...[[
               "pinned_by_readers_bytes", "Held by readers", "dead, but a reader still has it open"
             ],
                 ["linked_bytes", "Linked", "in files that have another hard link"]]
                 .filter(([name]) => given[name] > 0)
                 .map(([name, word, what]) => [word, what, given[name], null]),
           ]
               .map(
                   ([word, what, bytes, colour]) =>
                       el("div", {title: what}, el("dt", {}, colour && key(colour), word),
                          el("dd", {}, bytesText(bytes))))));
  },

  showStep() {
    const names = Object.keys(app.document.items || {});
    this.itemsTitle.textContent = app.step < 0 ? "Items" : `Items of step ${stepName(app.step)}`;
    this.items.setRows(app.step < 0 ? [] : names);
  },
};
