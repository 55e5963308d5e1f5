// SPDX-License-Identifier: Apache-2.0
// Texts: what is shown of names and numbers. Nothing here touches the page.

// Characters that change how their neighbours are shown, or show nothing themselves: controls,
// directions, zero widths, separators of lines, halves of surrogate pairs.
const CONTROLS =
    "\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u115f\\u1160\\u180e\\u200b-\\u200f" +
    "\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb";
const HALVES = "[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]";
const UNSEEN = new RegExp(`[${CONTROLS}]|${HALVES}`, "g");
const NAME_MAX = 120;

function visible(text) {
  return String(text).replace(UNSEEN, (character) => {
    const code = character.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` :
                        `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

// The beginning and the end of a long name: the end tells leaves apart.
function cutName(text, longest = NAME_MAX) {
  if (text === "") return "(empty)";
  // A blank at an end would not be seen.
  const blanks = String(text).replace(
      /^\s+|\s+$/g, (all) => [...all].map((each) => (each === " " ? "\\x20" : each)).join(""));
  const characters = [...visible(blanks)];
  if (characters.length <= longest) return characters.join("");
  const end = Math.floor(longest / 3);
  return `${characters.slice(0, longest - end - 1).join("")}…${characters.slice(-end).join("")}`;
}

// ---- numbers ------------------------------------------------------------------------------------

const UNKNOWN = "not known";
const formatCount = d3.format(",");

// Five digits; a power of ten where many zeros would stand before or behind them.
function formatShort(value) {
  const size = Math.abs(value);
  return d3.format(size !== 0 && (size < 1e-3 || size >= 1e7) ? ".4~e" : ".5~g")(value);
}

// The document has null for a value that is not known, and text for NaN and infinities.
function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function isOdd(value) {
  return value === "NaN" || value === "Infinity" || value === "-Infinity";
}

function numberText(value) {
  if (isOdd(value)) return value;
  if (!isNumber(value)) return UNKNOWN;
  return Number.isInteger(value) && Math.abs(value) < 1e7 ? formatCount(value) : formatShort(value);
}

// Short enough for an axis: 400k, 0.05, 1e-7.
function axisText(value) {
  return Math.abs(value) >= 1e4 && Math.abs(value) < 1e15 ? d3.format(".4~s")(value) :
                                                            d3.format(".4~g")(value);
}

function countText(value, one, many) {
  if (!isNumber(value)) return UNKNOWN;
  return `${formatCount(value)} ${value === 1 ? one : many || `${one}s`}`;
}

function bytesText(value) {
  if (!isNumber(value)) return isOdd(value) ? value : UNKNOWN;
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") {
      return unit === "B" ? `${formatCount(value)} B` : `${d3.format(",.1f")(size)} ${unit}`;
    }
    size /= 1024;
  }
  return UNKNOWN;
}

function secondsText(value) {
  if (!isNumber(value)) return isOdd(value) ? value : UNKNOWN;
  if (value === 0) return "0 s";
  if (Math.abs(value) < 1e-3) return `${d3.format(".3~g")(value * 1e6)} µs`;
  if (Math.abs(value) < 1) return `${d3.format(".3~g")(value * 1e3)} ms`;
  return value < 120 ? `${d3.format(".3~g")(value)} s` : `${formatCount(Math.round(value))} s`;
}

function rateText(value) {
  return isNumber(value) ? `${bytesText(value)}/s` : UNKNOWN;
}

function shareText(value) {
  if (!isNumber(value)) return isOdd(value) ? value : UNKNOWN;
  const percent = value * 100;
  return `${Math.abs(percent) < 1000 ? d3.format(".3~g")(percent) : d3.format(",.0f")(percent)} %`;
}

function changeText(value) {
  if (!isNumber(value)) return isOdd(value) ? value : UNKNOWN;
  return `${value > 0 ? "+" : ""}${formatShort(value)}`;
}

const formatTime = d3.utcFormat("%Y-%m-%d %H:%M:%S UTC");

function timeText(seconds) {
  return isNumber(seconds) ? formatTime(new Date(seconds * 1000)) : UNKNOWN;
}

// ---- paths --------------------------------------------------------------------------------------

// The components of a path in text form; a backslash takes the next character literally.
function componentsOf(path) {
  const components = [""];
  for (let i = 0; i < path.length; ++i) {
    if (path[i] === "/") {
      components.push("");
    } else {
      if (path[i] === "\\" && i + 1 < path.length) ++i;
      components[components.length - 1] += path[i];
    }
  }
  return components;
}

// The path with its item in front, which is the same in all steps: those that have no item but
// "state" leave it out, except before a name that is "state", too.
function wholePath(item, path) {
  if (item !== "state" || path === "state" || path.startsWith("state/")) return path;
  return path === "" ? "state" : `state/${path}`;
}

function isGlob(query) {
  return /(^|[^\\])(\\\\)*[*?]/.test(query);
}

// Whether a path is taken by a glob as `load` means it: * and ? stand for characters of one
// component, ** for any number of components, and a node takes the leaves below it.
function globOf(query) {
  const patterns = query.split("/").map((text) => {
    if (text === "**") return null;
    const pattern = text.replace(/\\(.)|([*?])|([^\w])/gsu, (all, literal, wild, other) => {
      if (wild) return wild === "*" ? ".*" : ".";
      return (literal === undefined ? other : literal).replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
    });
    return new RegExp(`^${pattern}$`, "su");
  });
  return (components) => {
    let reached = new Array(components.length + 1).fill(false);
    reached[0] = true;
    for (const pattern of patterns) {
      const next = new Array(components.length + 1).fill(false);
      for (let i = 0; i <= components.length; ++i) {
        next[i] = pattern === null ? reached[i] || (i > 0 && next[i - 1]) :
                                     i > 0 && reached[i - 1] && pattern.test(components[i - 1]);
      }
      reached = next;
    }
    return reached.includes(true);
  };
}
