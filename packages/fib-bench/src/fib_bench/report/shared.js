"use strict";
// Shared by the pages: text nodes out of JSON blocks, numbers as text, sortable tables.

const parse = (id) => JSON.parse(document.getElementById(id).textContent);
const at = (id) => document.getElementById(id);
const FIRST_ROWS = matchMedia("(max-width: 44rem)").matches ? 15 : 100;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// -- numbers as text -----------------------------------------------------------------------

const digits = (value) => Number(value.toPrecision(3)).toString();
const count = (value) => value.toLocaleString("en");
const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 1000) / 10} %`);
const number = (value) => (typeof value === "number" ? value : null);
const ratio = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value : value >= 0.1 ? `${value.toFixed(2)}×` : `${value.toPrecision(2)}×`);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
function latency(us) {
  if (us === null || us === undefined) return "–";
  return us >= 1e6 ? `${digits(us / 1e6)} s` : us >= 1e3 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
}

// -- tables ----------------------------------------------------------------------------------

// A column: {label, value(row) to sort by, show(row) -> text or node, kind: "text" | "name" | "", bar(row), descends}
// A group: {key(row), head(row) -> node}; rows are sorted within their group.
function table(columns, rows, sorted = null, group = null) {
  const body = make("tbody");
  const heads = columns.map((column, index) => make("th", { scope: "col", class: column.kind ? "text" : "" },
    make("button", { type: "button", text: column.label, onclick: () => sort(index) })));
  const more = make("button", { type: "button", class: "more", onclick: () => { shown = Infinity; fill(); } });
  const box = make("div", {}, make("div", { class: "scroll", tabindex: "0" },
    make("table", { class: "cards" }, make("thead", {}, make("tr", {}, ...heads)), body)), more);
  const places = new Map(rows.map((row, index) => [group && group.key(row), index]).reverse());
  let order = rows, shown = FIRST_ROWS, by = null, sign = 1;

  function compare(a, b) {
    if (a === b) return 0;
    if (a === null || a === undefined) return 1; // unknown values come last in both orders
    if (b === null || b === undefined) return -1;
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  }
  function sort(index) {
    const column = columns[index];
    sign = by === index ? -sign : column.descends ? -1 : 1;
    by = index;
    const place = (row) => (group ? places.get(group.key(row)) : 0);
    order = [...rows].sort((a, b) => place(a) - place(b) || compare(column.value(a), column.value(b)));
    heads.forEach((head, i) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    fill();
  }
  function cell(column, row) {
    const content = column.show(row);
    const bar = column.bar ? column.bar(row) : null;
    const kind = [column.kind === "name" ? "text name" : column.kind, bar ? "meter" : ""].join(" ").trim();
    return make("td", { class: kind || null, "data-label": column.label }, content, bar);
  }
  const headOf = (row, above) => (!group || (above && group.key(above) === group.key(row)) ? [] :
    [make("tr", { class: "group" }, make("th", { colspan: columns.length, scope: "rowgroup", class: "text" }, group.head(row)))]);
  function fill() {
    body.replaceChildren(...order.slice(0, shown).flatMap((row, index) =>
      [...headOf(row, order[index - 1]), make("tr", {}, ...columns.map((column) => cell(column, row)))]));
    more.hidden = order.length <= shown;
    more.textContent = `Show all ${count(order.length)} rows`;
  }
  if (sorted !== null) sort(sorted); else fill();
  return box;
}

// -- theme -------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set(); // functions that redraw the charts after a change of theme
const redraw = () => drawn.forEach((draw) => draw());
at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  root.dataset.theme = isDark ? "light" : "dark";
  redraw();
});
prefersDark.addEventListener("change", redraw);

// A specification with the colours of the page. Its box has a name for screen readers, and the tables have the numbers.
function styled(spec) {
  const style = getComputedStyle(document.documentElement);
  const soft = style.getPropertyValue("--soft").trim(), line = style.getPropertyValue("--line").trim();
  return Object.assign(structuredClone(spec), { width: "container", background: "transparent", autosize: { type: "fit-x", contains: "padding" },
    config: { aria: false, mark: { aria: false }, font: "system-ui, sans-serif", view: { stroke: null }, axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 11, titleFontSize: 11, titleFontWeight: 400, labelOverlap: "greedy", labelSeparation: 8 }, legend: { labelColor: soft } } });
}
