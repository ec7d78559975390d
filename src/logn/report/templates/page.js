"use strict";
// The page says everything without this script; it adds sorting, a filter, a slider and what a point of the charts is.

for (const table of document.querySelectorAll("table[data-sortable]")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => sortRows(table, headers, column));
  });
}

function sortRows(table, headers, column) {
  const header = headers[column];
  const isText = header.dataset.kind === "text";
  const first = isText ? "ascending" : "descending";
  const second = isText ? "descending" : "ascending";
  const direction = header.getAttribute("aria-sort") === first ? second : first;
  headers.forEach((other) => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const rows = [...body.rows].sort((one, two) => {
    const a = key(one), b = key(two);
    if (isText) return sign * a.localeCompare(b);
    if (a === "" || b === "") return (a === "") - (b === "");  // what is not there stands last, either way
    return sign * (Number(a) - Number(b));
  });
  body.append(...rows);
}

for (const field of document.querySelectorAll("input[data-filter]")) {
  field.closest(".controls").hidden = false;
  const rows = [...document.getElementById(field.dataset.filter).tBodies[0].rows];
  const names = rows.map((row) => row.cells[0].textContent.toLowerCase());
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    rows.forEach((row, place) => { row.hidden = !names[place].includes(wanted); });
  });
}

const slider = document.getElementById("strength");
if (slider) {
  slider.closest(".controls").hidden = false;
  const { points } = JSON.parse(document.getElementById("strength-data").textContent);
  const rings = [...document.querySelectorAll("[data-strength]")];
  const rows = [...document.getElementById("strength-table").tBodies[0].rows];
  const choose = () => {
    const { strength, text, command, places } = points[slider.value];
    slider.setAttribute("aria-valuetext", strength);
    document.getElementById("strength-name").textContent = strength;
    document.getElementById("strength-text").textContent = text;
    document.getElementById("strength-command").textContent = command;
    rings.forEach((ring, place) => {
      ring.setAttribute("cx", places[place][0]);
      ring.setAttribute("cy", places[place][1]);
    });
    rows.forEach((row) => row.classList.toggle("focus", row.cells[0].textContent === strength));
  };
  slider.addEventListener("input", choose);
  choose();
}

// Paper cannot be unfolded.
const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
window.addEventListener("beforeprint", () => { opened = folded(); opened.forEach((part) => { part.open = true; }); });
window.addEventListener("afterprint", () => { opened.forEach((part) => { part.open = false; }); });

const source = document.getElementById("class-data");
const charts = [...document.querySelectorAll("svg[data-points]")];
if (source && charts.length) {
  const data = JSON.parse(source.textContent);
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  for (const chart of charts) {
    const follow = (event) => showNearest(chart, event);
    chart.addEventListener("pointermove", follow);
    chart.addEventListener("pointerdown", follow);
    chart.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  }
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg[data-points]")) hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  function hide() {
    tip.hidden = true;
    document.querySelectorAll(".mark").forEach((mark) => mark.remove());
  }

  function showNearest(chart, event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    let best = -1, distance = 24 ** 2;
    data.points[chart.dataset.points].forEach((place, index) => {
      if (place === null) return;
      for (const y of place.slice(1)) {
        const found = (place[0] - point.x) ** 2 + (y - point.y) ** 2;
        if (found < distance) { distance = found; best = index; }
      }
    });
    hide();
    if (best >= 0) show(best, event);
  }

  function show(index, event) {
    const [title, ...lines] = data.classes[index];
    const bold = document.createElement("b");
    bold.textContent = title;
    tip.replaceChildren(bold, ...lines.map((line) => {
      const span = document.createElement("span");
      span.textContent = line;
      return span;
    }));
    tip.hidden = false;
    const width = document.documentElement.clientWidth;
    const left = Math.min(Math.max(8, event.clientX + 14), width - tip.offsetWidth - 8);
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${event.clientY + window.scrollY + 18}px`;
    for (const chart of charts) {
      const place = data.points[chart.dataset.points][index];
      if (place === null) continue;
      const [x, before, after] = place;
      add(chart, "line", { x1: x, x2: x, y1: before, y2: after, class: "mark link" });
      for (const y of [before, after]) add(chart, "circle", { cx: x, cy: y, r: 5, class: "mark ring" });
    }
  }

  function add(chart, name, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    chart.append(element);
  }
}
