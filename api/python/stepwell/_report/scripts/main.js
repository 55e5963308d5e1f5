// SPDX-License-Identifier: Apache-2.0
// The page as a whole: its head, its parts, and the polls of a live one.

const POLL_MS = 2000;

const head = {
  mount() {
    app.on("document", () => this.draw());
  },

  draw() {
    const {store, steps, made} = app.document;
    const newest = steps.number.length - 1;
    const at = (column) => (column && newest >= 0 ? column[newest] : null);
    document.title = `${cutName(store.name || "store", 60)} · Stepwell`;
    fill(document.getElementById("name"), nameOf(store.name || "store", 80));
    const path = store.path || "";
    fill(
        document.getElementById("where"), nameOf(path, 160),
        `${isNumber(store.format) ? ` · format ${store.format}` : ""} · ${
            app.isLive ? "read" : "made"} ${
            visible(String(made).replace("T", " ").replace(
                /(\.\d+)?Z$/, " UTC"))} by Stepwell ${visible(app.document.stepwell)}`);
    const best = Object.keys(app.document.metrics || {}).slice(0, 2).map((metric) => {
      const step = bestStep(app.document, metric);
      return step === null ? null : [
        el("span", {}, "Best ", nameOf(metric, 24)),
        [
          numberText(app.document.metrics[metric][step]),
          el("span", {class: "quiet"}, ` at ${stepName(step)}`)
        ]
      ];
    });
    const {health: given = {}, space: taken} = app.document;
    const broken = (given.damaged || []).length + (given.losses || []).length;
    fill(
        document.getElementById("facts"),
        [...facts([
           ["Steps", numberText(store.steps)],
           ["Newest", store.latest === null ? "none" : stepText(store.latest)],
           ["Leaves", numberText(app.document.leaves.total_leaves)],
           ["A step, loaded", bytesText(at(steps.logical_bytes))],
           ["Whole store", bytesText(taken ? taken.total_bytes : null)],
           ...best,
           ["Damage", broken ? el("strong", {class: "broken"}, formatCount(broken)) : "none known"],
         ]).children]);
  },
};

const live = {
  tag: null,

  // The next poll comes after ten times what this one took: a large run is not read without a
  // pause.
  async poll() {
    const begin = performance.now();
    const state = document.getElementById("live-state");
    try {
      const {data, tag} = await ask("document.json", {});
      if (tag === null || tag !== this.tag) show(data);
      this.tag = tag;
      state.textContent = `Live · read ${formatTime(new Date())}`;
      state.classList.remove("broken");
    } catch (error) {
      if (app.document) {
        state.textContent = `${error.message} What was read before is shown.`;
        state.classList.add("broken");
      } else {
        fail(error.message);
      }
    }
    setTimeout(() => this.poll(), Math.max(POLL_MS, 10 * (performance.now() - begin)));
  },
};

function fail(words) {
  const message = document.getElementById("message");
  message.textContent = words;
  message.classList.add("broken");
  message.hidden = false;
}

function show(report) {
  if (report.schema !== 1) {
    fail(`The document has schema ${visible(String(report.schema))}; this page shows schema 1.`);
    return;
  }
  document.getElementById("message").hidden = true;
  if (!app.document) mount();
  app.setDocument(report);
}

// The parts are made when there is a document to show, for they draw as soon as they have a width.
function mount() {
  const body = (id) => document.querySelector(`#${id} .body`);
  head.mount();
  chooser.mount(document.getElementById("chooser"));
  const parts = {timeline, tree, leaf: leafView, compare, space, speed, health, limits};
  for (const [id, part] of Object.entries(parts)) part.mount(body(id));
}

async function begin() {
  app.isLive = document.body.dataset.live === "true";
  if (app.isLive) {
    document.getElementById("live-state").hidden = false;
    await live.poll();
    return;
  }
  try {
    show(await readEmbedded());
  } catch (error) {
    fail(`The document of this page cannot be read: ${error.message}`);
    throw error;
  }
}

begin();
