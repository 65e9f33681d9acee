
"use strict";
// What a page can do beyond being read: filter, sort, hide a series, name a point, copy. Every control is made here, so
// without scripts none is shown; texts are only ever set as text. Nothing that the page says depends on it.
(() => {
  const ARMS = { baseline: "#7d8796", candidate: "#3d7dd8" }; // as charts draw them
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

  // Checks by state. What is hidden is said, and a link to a hidden check brings all of them back.
  const stateOf = (check) => check.querySelector(".badge").lastChild.textContent.trim();

  const filterChecks = () => {
    const tables = all("table.checks");
    const checks = all("table.checks > tbody");
    const states = new Map();
    for (const check of checks) states.set(stateOf(check), (states.get(stateOf(check)) || 0) + 1);
    if (states.size < 2) return;
    const chips = make("div", { class: "controls", role: "group", "aria-label": "Show checks by outcome" });
    const told = make("span", { class: "quiet", role: "status" });
    const show = (state) => {
      for (const check of checks) check.hidden = state !== "" && stateOf(check) !== state;
      for (const table of tables) table.hidden = [...table.tBodies].every((check) => check.hidden);
      for (const chip of all("button", chips)) chip.setAttribute("aria-pressed", String(chip.value === state));
      const shown = checks.filter((check) => !check.hidden).length;
      told.textContent = state === "" ? "" : `${shown} of ${checks.length} checks shown`;
    };
    for (const [state, count] of [["", checks.length], ...states]) {
      const chip = button(`${state || "All"} ${count}`, () => show(state));
      chip.value = state;
      chips.append(chip);
    }
    chips.append(told);
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

  // Tables by a column: up, down, and back to the order of the report. What is no number comes last either way, and
  // amounts of several kinds, as the checks have them, stand kind by kind. A check is a table body of two rows.
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

  const told = (cell) => (cell.querySelector("a, title") || cell).textContent.trim();

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
      if (!head.textContent.trim() || rows.every((row) => !told(cells(row)[column]))) return;
      const press = button("", () => {
        const order = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        if (order) head.setAttribute("aria-sort", order);
        const text = (row) => told(cells(row)[column]);
        const by = compare(head.matches(".number, .stripe"), order === "descending");
        place.append(...(order ? [...rows].sort((one, other) => by(text(one), text(other))) : rows));
        for (const row of groups) row.classList.toggle("start", !order);
      });
      press.title = "Sort by this column";
      press.append(...head.childNodes);
      head.append(press);
    });
  };

  // The series of a chart: each arm can be hidden, by the colour that only it has.
  const toggles = (chart) => {
    const marks = (arm) => all(`[stroke="${ARMS[arm]}"], [fill="${ARMS[arm]}"]`, chart);
    const arms = Object.keys(ARMS).filter((arm) => marks(arm).length > 0);
    if (arms.length < 2) return;
    const controls = make("div", { class: "controls", role: "group", "aria-label": "Show series" });
    for (const arm of arms) {
      const press = button(arm, () => {
        const shown = press.getAttribute("aria-pressed") !== "true";
        press.setAttribute("aria-pressed", String(shown));
        for (const mark of marks(arm)) mark.toggleAttribute("hidden", !shown);
      });
      press.setAttribute("aria-pressed", "true");
      controls.append(press);
    }
    chart.after(controls);
  };

  // What a point of a chart stands for. Its title says it without a script, to who hits it; this is nearer and at once.
  const REACH = 24; // pixels
  const tip = make("div", { class: "tip", "aria-hidden": "true" });

  const nearest = (chart, x, y) => {
    let best = null;
    let least = REACH;
    for (const mark of all("[data-told]:not([hidden])", chart)) {
      const box = mark.getBoundingClientRect();
      const distance = Math.hypot(box.x + box.width / 2 - x, box.y + box.height / 2 - y);
      if (distance < least) [best, least] = [mark, distance];
    }
    return best;
  };

  const hide = () => { tip.hidden = true; };

  const tips = (chart) => {
    for (const title of all("title", chart)) {
      title.parentNode.dataset.told = title.textContent;
      title.remove();
    }
    const show = (event) => {
      const mark = nearest(chart, event.clientX, event.clientY);
      tip.hidden = mark === null;
      if (mark === null) return;
      tip.textContent = mark.dataset.told;
      const left = Math.min(event.clientX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    };
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    chart.addEventListener("pointerleave", hide);
  };

  // Copying: by the clipboard where the page may use it, else by a selection, which the reader sees.
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
  all("svg.chart").forEach(toggles);
  hide();
  document.body.append(tip);
  all("svg.chart").forEach(tips);
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  all("pre.command, #verdict-json").forEach(copyable);
})();
