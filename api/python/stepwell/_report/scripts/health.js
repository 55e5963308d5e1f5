// SPDX-License-Identifier: Apache-2.0
// Health: damage, losses, verification, readers; and what this page leaves out.

const health = {
  mount(body) {
    this.body = body;
    app.on("document", () => this.draw());
  },

  draw() {
    const given = app.document.health || {};
    const damaged = given.damaged || [], losses = given.losses || [];
    const recovery = given.recovery;
    const sentences = (title, list) => (
        list.length ?
            [
              el("h3", {}, title), el("ul", {}, list.map((each) => el("li", {}, nameOf(each, 600))))
            ] :
            null);
    const isSound = !damaged.length && !losses.length;
    fill(
        this.body,
        el("p", {class: `verdict ${isSound ? "sound" : "broken"}`, id: "verdict"},
           isSound ? "No damage is known." :
                     `Damage is known: ${
                             [damaged.length && countText(damaged.length, "damaged step"),
                              losses.length && countText(losses.length, "loss", "losses")]
                                 .filter(Boolean)
                                 .join(", ")}.`),
        facts([
          [
            "Last verified",
            given.last_verified === null || given.last_verified === undefined ?
                "never, as far as is known" :
                `step ${stepText(given.last_verified)}`
          ],
          [
            "Verified steps",
            `${numberText(given.verified_steps)} of ${numberText(app.document.store.steps)}`
          ],
          recovery ? ["Opened", recoveryWords(recovery)] : ["Opened", UNKNOWN],
        ]),
        sentences("Damaged steps", damaged.map((each) => `Step ${each.step}: ${each.what}`)),
        sentences("Losses", losses),
        sentences("Found when the store was opened", (recovery && recovery.problems) || []),
        sentences("Readers that keep space", given.old_pins || []),
        sentences("Views", (given.views || []).map(viewWords)),
        sentences("Notes", given.notes || []),
        sentences("Retention", ((app.document.retention || {}).rules || [])),
        sentences("Warnings of retention", ((app.document.retention || {}).warnings || [])));
  },
};

function recoveryWords(recovery) {
  const parts =
      [recovery.clean ? "it had been closed properly" : "it had not been closed properly"];
  if (recovery.commits_recovered)
    parts.push(`${countText(recovery.commits_recovered, "commit")} recovered`);
  if (recovery.commits_rejected)
    parts.push(`${countText(recovery.commits_rejected, "commit")} discarded`);
  if (recovery.index_rebuilt) parts.push("index built anew");
  return parts.join(", ");
}

function viewWords(view) {
  if (typeof view === "string") return view;
  const error = view.last_error ? `; ${view.last_error}` : "";
  return `${view.path}: ${countText(view.shown, "step")} shown${
      view.following ? "" : ", not following"}${error}`;
}

const limits = {
  mount(body) {
    app.on("document", () => {
      const said = app.document.limits || [];
      fill(
          body,
          said.length ?
              el("ul", {}, said.map((each) => el("li", {}, nameOf(each, 600)))) :
              el("p", {class: "quiet"}, "Nothing was left out: every step and every leaf is here."),
          app.isLive ?
              null :
              el("p", {class: "quiet"}, "No array is on this page, and it asks for nothing: ",
                 el("code", {}, "stepwell serve"), " shows elements, and a run that goes on."));
    });
  },
};
