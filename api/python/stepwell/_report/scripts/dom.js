// SPDX-License-Identifier: Apache-2.0
// Elements. Text goes into the page as text alone (textContent): no name can become markup.

const SVG = "http://www.w3.org/2000/svg";

// el("p", {class: "quiet", onclick: f}, "text", child): attributes, then children.
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

// A name that others chose: whatever its direction, it moves none of its neighbours.
function nameOf(text, longest) {
  return el("bdi", {class: "name", dir: "auto"}, cutName(text, longest));
}

// What is not known is a dash for the eye, and words for all else.
function valueOf(text) {
  if (text !== UNKNOWN) return text;
  return el(
      "span", {class: "unknown", title: UNKNOWN}, "–", el("span", {class: "unseen"}, UNKNOWN));
}

// A name as a whole, to copy: the field has its very characters, which the name shown may not.
function wholeName(label, text) {
  const field = el("textarea", {
    readonly: true,
    rows: 2,
    class: "whole",
    dir: "ltr",
    "aria-label": label,
    spellcheck: "false",
    onfocus: () => field.select()
  });
  field.value = text;
  return field;
}

function copyButton(text, label) {
  const button =
      el("button", {
        type: "button",
        class: "small",
        onclick: async () => {
          try {
            await navigator.clipboard.writeText(text);
            button.textContent = "Copied";
          } catch {
            button.textContent = "The browser did not allow it";
          }
          setTimeout(() => {
            button.textContent = label;
          }, 1500);
        }
      },
         label);
  return button;
}

function facts(rows, attributes) {
  return el(
      "dl", attributes || {class: "facts"},
      rows.filter(Boolean).map(
          ([name, value]) =>
              el("div", {}, el("dt", {}, name), el("dd", {}, [value].flat().map(valueOf)))));
}

function choice(label, options, chosen, onchange) {
  const select = el("select", {onchange: () => onchange(select.value)});
  setOptions(select, options, chosen);
  return [el("label", {class: "field"}, el("span", {}, label), select), select];
}

// An open list of options stays open where they are the same.
function setOptions(select, options, chosen) {
  const isSame = options.length === select.options.length &&
      options.every(
          ([value, text], i) =>
              select.options[i].value === String(value) && select.options[i].textContent === text);
  if (!isSame) fill(select, options.map(([value, text]) => el("option", {value}, text)));
  select.value = String(chosen);
}

function toggle(label, on, onchange) {
  const box = el("input", {type: "checkbox", onchange: () => onchange(box.checked)});
  box.checked = on;
  return el("label", {class: "toggle"}, box, el("span", {}, label));
}

let idsGiven = 0;

function newId(of) {
  idsGiven += 1;
  return `${of}-${idsGiven}`;
}

// Calls `draw` when the element has a new width, and once at the beginning.
function onWidth(element, draw) {
  let width = -1;
  new ResizeObserver((entries) => {
    const now = Math.round(entries[0].contentRect.width);
    if (now === width || now === 0) return;
    width = now;
    draw(now);
  }).observe(element);
}
