"use strict";
(() => {
  const place = document.getElementById("filters");
  const rows = [...document.querySelectorAll("tr[data-outcome]")];
  if (!place || rows.length < 2) return;
  const groups = [...document.querySelectorAll("section.suite")];
  const suiteOf = (row) => row.closest("[data-suite]").dataset.suite;
  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const bar = document.createElement("div");
  bar.className = "filters";
  bar.setAttribute("role", "search");
  const add = (name, control) => {
    const label = document.createElement("label");
    label.append(name, control);
    control.addEventListener("input", apply);
    bar.append(label);
    return control;
  };
  const choice = (name, values) => {
    const known = [...new Set(values)];
    const control = document.createElement("select");
    control.append(new Option("any", ""));
    for (const value of known) control.append(new Option(value, value));
    return known.length > 1 ? add(name, control) : control;
  };
  const text = document.createElement("input");
  text.type = "search";
  add("label, id or candidate", text);
  const suite = choice("suite", rows.map(suiteOf));
  const outcome = choice("verdict", rows.map((row) => row.dataset.outcome));
  const promoted = choice("promoted", rows.map((row) => row.dataset.promoted));
  const count = document.createElement("output");
  bar.append(count);
  place.append(bar);

  function apply() {
    const query = text.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const matches = words.get(row).includes(query)
        && (!suite.value || suiteOf(row) === suite.value)
        && (!outcome.value || row.dataset.outcome === outcome.value)
        && (!promoted.value || row.dataset.promoted === promoted.value);
      row.hidden = !matches;
      shown += matches;
    }
    for (const group of groups) group.hidden = !group.querySelector("tr[data-outcome]:not([hidden])");
    count.textContent = `${shown} of ${rows.length} runs`;
  }
  apply();
})();
