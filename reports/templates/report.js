
"use strict";
// Filters and sorts tables, names points of charts and copies commands. Every control is made here, so that a page
// without scripts shows none. Texts are only ever set as text.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const make = (tag, attributes = {}, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };

  const button = (text, act) => {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", () => act(made));
    return made;
  };

  // Filter checks by outcome; a link to a hidden check shows all of them again.
  const stateOf = (check) => check.querySelector(".badge").lastChild.textContent.trim();

  const filterChecks = () => {
    const tables = all("table.checks");
    const checks = all("table.checks > tbody");
    const states = new Map();
    for (const check of checks) states.set(stateOf(check), (states.get(stateOf(check)) || 0) + 1);
    if (states.size < 2) return;
    const chips = make("div", { class: "controls", role: "group", "aria-label": "Show checks by outcome" });
    const status = make("span", { class: "quiet", role: "status" });
    const show = (state) => {
      for (const check of checks) check.hidden = state !== "" && stateOf(check) !== state;
      for (const table of tables) table.hidden = [...table.tBodies].every((check) => check.hidden);
      for (const chip of all("button", chips)) chip.setAttribute("aria-pressed", String(chip.value === state));
      const shown = checks.filter((check) => !check.hidden).length;
      status.textContent = state === "" ? "" : `${shown} of ${checks.length} checks shown`;
    };
    for (const [state, count] of [["", checks.length], ...states]) {
      const chip = button(`${state || "All"} ${count}`, () => show(state));
      chip.value = state;
      chips.append(chip);
    }
    chips.append(status);
    tables[0].before(chips);
    show("");
    addEventListener("hashchange", () => {
      const target = document.getElementById(location.hash.slice(1));
      if (target && target.closest("[hidden]")) {
        show("");
        target.scrollIntoView();
      }
    });
  };

  // Sort a table by a column: ascending, descending, then the report's order. Cells without a number come last, amounts
  // in different units stay apart. A check is a table body of two rows.
  const SECONDS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 };
  const words = new Intl.Collator("en", { numeric: true });

  const amount = (text) => {
    const found = text.replaceAll("\u2212", "-").match(/^[^\d\u221e+-]{0,2}([+-]?)\$?(\u221e|[\d,]*\.?\d+)\s*([a-zµ%/]*)/);
    if (!found) return null;
    const [, sign, digits, unit] = found;
    const size = digits === "\u221e" ? Infinity : Number(digits.replaceAll(",", "")) * (SECONDS[unit] || 1);
    return [unit in SECONDS ? "s" : unit.replace(/s$/, ""), sign === "-" ? -size : size];
  };

  const compare = (numeric, falling) => (one, other) => {
    const turn = falling ? -1 : 1;
    if (!numeric) return turn * words.compare(one, other);
    const [a, b] = [amount(one), amount(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    const finite = Number.isFinite(a[1]) && Number.isFinite(b[1]);
    if (finite && a[0] !== b[0]) return turn * words.compare(a[0], b[0]);
    return a[1] === b[1] ? 0 : turn * (a[1] < b[1] ? -1 : 1);
  };

  const textOf = (cell) => (cell.querySelector("a, title") || cell).textContent.trim();

  const sortable = (table) => {
    const bodies = [...table.tBodies];
    const checks = table.classList.contains("checks");
    const rows = checks ? bodies : [...bodies[0].rows];
    const place = checks ? table : bodies[0];
    const cells = (row) => (checks ? row.rows[0] : row).cells;
    const heads = [...table.tHead.rows[0].cells];
    if (rows.length < 2 || rows.some((row) => cells(row).length !== heads.length)) return;
    const groups = rows.filter((row) => row.classList.contains("start"));
    heads.forEach((head, column) => {
      if (!head.textContent.trim() || rows.every((row) => !textOf(cells(row)[column]))) return;
      const press = button("", () => {
        const order = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        if (order) head.setAttribute("aria-sort", order);
        const text = (row) => textOf(cells(row)[column]);
        const by = compare(head.matches(".number, .stripe"), order === "descending");
        place.append(...(order ? [...rows].sort((one, other) => by(text(one), text(other))) : rows));
        for (const row of groups) row.classList.toggle("start", !order);
      });
      press.title = "Sort by this column";
      press.append(...head.childNodes);
      head.append(press);
    });
  };

  // Show a point's title at once and near the pointer, instead of the browser's tooltip.
  const REACH = 24; // pixels
  const tip = make("div", { class: "tip", "aria-hidden": "true" });

  const nearest = (chart, x, y) => {
    let best = null;
    let least = REACH;
    for (const mark of all("[data-label]:not([hidden])", chart)) {
      const box = mark.getBoundingClientRect();
      const distance = Math.hypot(box.x + box.width / 2 - x, box.y + box.height / 2 - y);
      if (distance < least) [best, least] = [mark, distance];
    }
    return best;
  };

  const hide = () => { tip.hidden = true; };

  const tips = (chart) => {
    for (const title of all("title", chart)) {
      title.parentNode.dataset.label = title.textContent;
      title.remove();
    }
    const show = (event) => {
      const mark = nearest(chart, event.clientX, event.clientY);
      tip.hidden = mark === null;
      if (mark === null) return;
      tip.textContent = mark.dataset.label;
      const left = Math.min(event.clientX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    };
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    chart.addEventListener("pointerleave", hide);
  };

  // Copy by the clipboard where the page may use it, else by a visible selection.
  const copy = async (source) => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(source);
      return document.execCommand("copy");
    }
  };

  const copyable = (source) => {
    const press = button("Copy", async () => {
      press.textContent = (await copy(source)) ? "Copied" : "Not copied: select it by hand";
      setTimeout(() => { press.textContent = "Copy"; }, 2000);
    });
    press.setAttribute("aria-live", "polite");
    const controls = make("div", { class: "controls" });
    controls.append(press);
    source.before(controls);
  };

  filterChecks();
  all(".scroll table, table.checks").forEach(sortable);
  hide();
  document.body.append(tip);
  all("svg.chart").forEach(tips);
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  all("pre.command").forEach(copyable);
})();
